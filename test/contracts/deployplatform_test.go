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

// The fleet platform applies to a cluster, and its programs take their configurations.
func TestPlatformApplies(t *testing.T) {
	t.Parallel()

	makeNamespace(t, "hyperfleet-system")

	objects := build(t, platformDir)
	for _, object := range objects {
		err := strict().Patch(t.Context(), object.DeepCopy(), client.Apply, client.FieldOwner("platform"), client.ForceOwnership) //nolint:staticcheck // Apply takes no unstructured object with field validation
		if err != nil {
			t.Errorf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}

	var api platform.API

	decodeConfig(t, get[corev1.ConfigMap](t, objects, "ConfigMap", "hyperfleet-api").Data["api.yaml"], &api)

	pod := get[appsv1.Deployment](t, objects, "Deployment", "hyperfleet-api").Spec.Template.Spec
	hasFiles(t, pod, api.Database.URLFile)

	service := get[corev1.Service](t, objects, "Service", "hyperfleet-api")
	if !matches(service.Spec.Selector, get[appsv1.Deployment](t, objects, "Deployment", "hyperfleet-api").Spec.Template.Labels) {
		t.Error("the Service does not select the API's pods")
	}

	var sweep platform.Sweep

	decodeConfig(t, get[corev1.ConfigMap](t, objects, "ConfigMap", "hyperfleet-sweep").Data["sweep.yaml"], &sweep)

	hasFiles(t, get[batchv1.CronJob](t, objects, "CronJob", "hyperfleet-sweep").Spec.JobTemplate.Spec.Template.Spec, sweep.IdentityKeyFile)
}

// hasFiles says which files of a configuration, and of the program's arguments, no volume has.
func hasFiles(t *testing.T, pod corev1.PodSpec, files ...string) {
	t.Helper()

	for _, arg := range pod.Containers[0].Args {
		if _, file, ok := strings.Cut(arg, "=/"); ok {
			files = append(files, "/"+file)
		} else if strings.HasPrefix(arg, "/") {
			files = append(files, arg)
		}
	}

	if len(files) < 2 { //nolint:mnd // one of the configuration, and the configuration
		t.Errorf("the arguments %v name no configuration", pod.Containers[0].Args)
	}

	for _, file := range files {
		if !mounted(pod, file) {
			t.Errorf("no volume has %s", file)
		}
	}
}

// decodeConfig reads a configuration as its program does.
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

// mounted says whether a file lies in a volume of the pod's first container.
func mounted(pod corev1.PodSpec, file string) bool {
	for _, mount := range pod.Containers[0].VolumeMounts {
		if strings.HasPrefix(file, mount.MountPath+"/") {
			return true
		}
	}

	return false
}
