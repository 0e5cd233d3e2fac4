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
	if !mounted(pod, api.Database.URLFile) {
		t.Errorf("no volume has %s", api.Database.URLFile)
	}

	service := get[corev1.Service](t, objects, "Service", "hyperfleet-api")
	if !matches(service.Spec.Selector, get[appsv1.Deployment](t, objects, "Deployment", "hyperfleet-api").Spec.Template.Labels) {
		t.Error("the Service does not select the API's pods")
	}

	var sweep platform.Sweep

	decodeConfig(t, get[corev1.ConfigMap](t, objects, "ConfigMap", "hyperfleet-sweep").Data["sweep.yaml"], &sweep)

	if pod := get[batchv1.CronJob](t, objects, "CronJob", "hyperfleet-sweep").Spec.JobTemplate.Spec.Template.Spec; !mounted(pod, sweep.IdentityKeyFile) {
		t.Errorf("no volume has %s", sweep.IdentityKeyFile)
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
