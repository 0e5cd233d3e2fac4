// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

const platformDir = "../../deploy/platform"

// The fleet platform can be applied to a cluster, and its programs accept their configurations.
func TestPlatformApplies(t *testing.T) {
	t.Parallel()

	ensureNamespace(t, "hyperfleet-system")

	objects := buildKustomization(t, platformDir)
	for _, object := range objects {
		err := newStrictClient().Patch(t.Context(), object.DeepCopy(), client.Apply, client.FieldOwner("platform"), client.ForceOwnership) //nolint:staticcheck // Apply takes no unstructured object with field validation
		if err != nil {
			t.Errorf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}

	var api platform.API

	decodeConfig(t, findObject[corev1.ConfigMap](t, objects, "ConfigMap", "hyperfleet-api").Data["api.yaml"], &api)

	pod := findObject[appsv1.Deployment](t, objects, "Deployment", "hyperfleet-api").Spec.Template.Spec
	requireFiles(t, pod, api.Database.URLFile)

	service := findObject[corev1.Service](t, objects, "Service", "hyperfleet-api")
	if !matchesSelector(service.Spec.Selector, findObject[appsv1.Deployment](t, objects, "Deployment", "hyperfleet-api").Spec.Template.Labels) {
		t.Error("the Service does not select the API's pods")
	}

	var sweep platform.Sweep

	decodeConfig(t, findObject[corev1.ConfigMap](t, objects, "ConfigMap", "hyperfleet-sweep").Data["sweep.yaml"], &sweep)

	requireFiles(t, findObject[batchv1.CronJob](t, objects, "CronJob", "hyperfleet-sweep").Spec.JobTemplate.Spec.Template.Spec, sweep.IdentityKeyFile)
}

// requireFiles reports the files of a configuration and of the program's arguments that are in no volume.
func requireFiles(t *testing.T, pod corev1.PodSpec, files ...string) {
	t.Helper()

	for _, arg := range pod.Containers[0].Args {
		if _, file, ok := strings.Cut(arg, "=/"); ok {
			files = append(files, "/"+file)
		} else if strings.HasPrefix(arg, "/") {
			files = append(files, arg)
		}
	}

	if len(files) < 2 { //nolint:mnd // the configuration, and at least one file in it
		t.Errorf("the arguments %v name no configuration", pod.Containers[0].Args)
	}

	for _, file := range files {
		if !isMounted(pod, file) {
			t.Errorf("no volume has %s", file)
		}
	}
}

// decodeConfig decodes a configuration as its program does.
func decodeConfig(t *testing.T, text string, into any) {
	t.Helper()

	document, err := strictyaml.Parse("configuration", []byte(text))
	if err == nil {
		err = document.Decode(into)
	}

	if err != nil {
		t.Error(err)
	}
}

// isMounted returns whether a file is in a volume of the pod's first container.
func isMounted(pod corev1.PodSpec, file string) bool {
	for _, mount := range pod.Containers[0].VolumeMounts {
		if strings.HasPrefix(file, mount.MountPath+"/") {
			return true
		}
	}

	return false
}
