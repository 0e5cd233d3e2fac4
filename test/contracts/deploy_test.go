// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	configv1 "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

const (
	baseDir        = "../../deploy/base"
	operatorName   = "hyperfleet-runners"
	operatorSpace  = "hyperfleet-system"
	operatorConfig = "operator.yaml"
)

// kustomization has the fields of a kustomization that the bases use. Any other field fails the test, because
// the test does not implement it.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
}

// buildKustomization returns the objects of a kustomization and of the kustomizations that it refers to.
func buildKustomization(t testing.TB, dir string) []*unstructured.Unstructured {
	t.Helper()

	var (
		raw []byte
		err error
	)

	for _, name := range []string{"kustomization.yaml", "Kustomization"} {
		if raw, err = os.ReadFile(filepath.Join(dir, name)); err == nil {
			break
		}
	}

	if err != nil {
		t.Fatal(err)
	}

	var spec kustomization
	if err := yaml.UnmarshalStrict(raw, &spec); err != nil {
		t.Fatalf("%s: %v", dir, err)
	}

	var objects []*unstructured.Unstructured

	for _, resource := range spec.Resources {
		path := filepath.Join(dir, resource)

		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}

		if info.IsDir() {
			objects = append(objects, buildKustomization(t, path)...)
		} else {
			objects = append(objects, readObjects(t, path)...)
		}
	}

	return objects
}

// applyBase applies the base unchanged.
func applyBase(t testing.TB) []*unstructured.Unstructured {
	t.Helper()

	objects := buildKustomization(t, baseDir)

	for _, object := range objects {
		applied := object.DeepCopy()

		err := newStrictClient().Patch(t.Context(), applied, client.Apply, client.FieldOwner("deploy"), client.ForceOwnership) //nolint:staticcheck // Apply takes no unstructured object with field validation
		if err != nil {
			t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}

	return objects
}

// findObject returns the only object with the kind and the name.
func findObject[T any](t testing.TB, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()

	typed := new(T)

	for _, object := range objects {
		if object.GetKind() == kind && object.GetName() == name {
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed, true); err != nil {
				t.Fatalf("%s %s: %v", kind, name, err)
			}

			return typed
		}
	}

	t.Fatalf("the base has no %s %s", kind, name)

	return nil
}

// The base can be applied to a cluster, file by file and in the order of the files.
func TestBaseApplies(t *testing.T) {
	t.Parallel()

	objects := applyBase(t)

	for _, file := range []string{"../../deploy/crds", "../../deploy/rbac", baseDir} {
		for _, object := range readObjects(t, file) {
			if !slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
				return o.GetKind() == object.GetKind() && o.GetName() == object.GetName()
			}) {
				t.Errorf("%s %s is in %s, which is in no kustomization", object.GetKind(), object.GetName(), file)
			}
		}
	}
}

// Names, ports, labels and volumes are consistent across the files.
func TestBaseIsConsistent(t *testing.T) {
	t.Parallel()

	objects := buildKustomization(t, baseDir)
	deployment := findObject[appsv1.Deployment](t, objects, "Deployment", operatorName)
	pod := deployment.Spec.Template
	container := pod.Spec.Containers[0]

	ports := map[string]bool{}
	for _, port := range container.Ports {
		ports[port.Name] = true
	}

	for _, name := range []string{"hyperfleet-webhooks", "hyperfleet-metrics"} {
		service := findObject[corev1.Service](t, objects, "Service", name)
		if !matchesSelector(service.Spec.Selector, pod.Labels) {
			t.Errorf("Service %s does not select the operator's pods", name)
		}

		for _, port := range service.Spec.Ports {
			if !ports[port.TargetPort.StrVal] {
				t.Errorf("Service %s leads to port %s, which the operator does not have", name, port.TargetPort.StrVal)
			}
		}
	}

	policy := findObject[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", operatorName)
	if !matchesSelector(policy.Spec.PodSelector.MatchLabels, pod.Labels) || len(policy.Spec.PolicyTypes) != 2 {
		t.Error("the NetworkPolicy does not govern both directions of the operator's pods")
	}

	if account := findObject[corev1.ServiceAccount](t, objects, "ServiceAccount", operatorName); account.Name != pod.Spec.ServiceAccountName {
		t.Errorf("the pods run as %s", pod.Spec.ServiceAccountName)
	}

	if volume := pod.Spec.Volumes[0]; volume.ConfigMap == nil || volume.ConfigMap.Name != operatorName {
		t.Error("the first volume is not the configuration")
	}

	if want := "--config=" + container.VolumeMounts[0].MountPath + "/" + operatorConfig; !slices.Contains(container.Args, want) {
		t.Errorf("the operator is not started with %s", want)
	}
}

// The operator's own loader accepts the configuration with the container's arguments and environment
// variables, and its ports are those of the Deployment.
func TestConfigMapIsValidConfiguration(t *testing.T) {
	t.Parallel()

	objects := buildKustomization(t, baseDir)
	pod := findObject[appsv1.Deployment](t, objects, "Deployment", operatorName).Spec.Template.Spec
	container := pod.Containers[0]

	file := filepath.Join(t.TempDir(), operatorConfig)
	text := findObject[corev1.ConfigMap](t, objects, "ConfigMap", operatorName).Data[operatorConfig]

	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	environ := make([]string, 0, len(container.Env))
	for _, variable := range container.Env {
		environ = append(environ, variable.Name+"="+variable.Value)
	}

	spec := strictyaml.Spec[configv1.OperatorConfig]{
		APIVersion: configv1.APIVersion, Kind: configv1.KindOperatorConfig, Default: configv1.Default(),
		OwnsPrefix: true, Environ: func() []string { return environ },
	}
	flags := pflag.NewFlagSet("operator", pflag.ContinueOnError)

	if err := spec.AddFlags(flags); err != nil {
		t.Fatal(err)
	}

	mounted := container.VolumeMounts[0].MountPath + "/" + operatorConfig
	if err := flags.Parse(strings.Split(strings.ReplaceAll(strings.Join(container.Args[1:], " "), mounted, file), " ")); err != nil {
		t.Fatal(err)
	}

	loaded, err := spec.Load(flags)
	if err != nil {
		t.Fatal(err)
	}

	addresses := map[string]string{
		"metrics": loaded.Metrics.BindAddress, "health": loaded.Health.BindAddress,
		"webhooks": loaded.Webhooks.BindAddress,
	}
	for _, port := range container.Ports {
		if want := ":" + strconv.Itoa(int(port.ContainerPort)); addresses[port.Name] != want {
			t.Errorf("port %s is %s in the Deployment and %q in the configuration", port.Name, want, addresses[port.Name])
		}
	}

	if loaded.Namespace != operatorSpace || !loaded.LeaderElection.Enabled {
		t.Errorf("namespace %s, leader election %t", loaded.Namespace, loaded.LeaderElection.Enabled)
	}

	// Every server uses TLS. Metrics are only for authorized accounts.
	if web := loaded.Webhooks; web.PlainHTTP || !web.OwnAuthority && web.CertFile == "" || !loaded.Metrics.Secure {
		t.Errorf("webhooks %+v, metrics %+v: served in the clear", web, loaded.Metrics)
	}

	// A Service with the name hyperfleet-webhooks would set the environment variable
	// HYPERFLEET_WEBHOOKS_SERVICE_HOST, which the strict loader rejects.
	if pod.EnableServiceLinks == nil || *pod.EnableServiceLinks {
		t.Error("environment variables for Services would prevent the operator from starting")
	}
}

// matchesSelector returns whether the labels contain all labels of a selector.
func matchesSelector(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}

	return len(selector) > 0
}
