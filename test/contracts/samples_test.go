// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const samplesDir = "../../deploy/samples"

// listSampleFiles returns the paths of the samples.
func listSampleFiles(t testing.TB) []string {
	t.Helper()

	var all []string

	for _, folder := range []string{"", "/written-by-the-operator"} {
		files, err := filepath.Glob(samplesDir + folder + "/*.yaml")
		if err != nil || len(files) == 0 {
			t.Fatalf("list samples: %d found, error %v", len(files), err)
		}

		all = append(all, files...)
	}

	return all
}

// readObjects reads the objects of files.
func readObjects(t testing.TB, files ...string) []*unstructured.Unstructured {
	t.Helper()

	objects, err := kubeproc.ReadObjects(files...)
	if err != nil {
		t.Fatal(err)
	}

	return objects
}

// ensureNamespace creates a namespace if it does not exist.
func ensureNamespace(t testing.TB, name string) {
	t.Helper()

	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := client.IgnoreAlreadyExists(env.Client.Create(t.Context(), namespace)); err != nil {
		t.Fatal(err)
	}
}

// Every sample can be applied unchanged, and also in the form in which its Go type marshals it.
func TestSamplesApply(t *testing.T) {
	t.Parallel()

	ensureNamespace(t, "hyperfleet-system")
	ensureNamespace(t, "ci")
	ensureNamespace(t, "dpf-hcp-bridge-system")

	kinds := map[string]int{}

	for _, file := range listSampleFiles(t) {
		for _, object := range readObjects(t, file) {
			kinds[object.GetKind()]++

			t.Run(filepath.Base(file)+"/"+object.GetName(), func(t *testing.T) {
				t.Parallel()

				applied := object.DeepCopy()

				err := newStrictClient().Patch(t.Context(), applied, client.Apply, client.FieldOwner("sample"), client.ForceOwnership) //nolint:staticcheck // Apply takes no unstructured object with field validation
				if err != nil {
					t.Fatal(err)
				}

				updateTyped(t, applied)
			})
		}
	}

	for kind := range readCRDs(t) {
		if kinds[kind] == 0 {
			t.Errorf("%s has no sample", kind)
		}
	}
}

// `kubectl apply -f deploy/samples` applies the files in the order of their names. Every object comes after
// the objects that it needs, and no file creates a job that no CI platform has queued. The same is true for
// deploy/samples/start, which docs/start/runners.md shows.
func TestSamplesApplyInOrder(t *testing.T) {
	t.Parallel()

	for _, folder := range []string{samplesDir, samplesDir + "/start"} {
		known := map[string]bool{"hyperfleet-system": true}

		files, err := filepath.Glob(folder + "/*.yaml")
		if err != nil || len(files) == 0 {
			t.Fatalf("list %s: %d found, error %v", folder, len(files), err)
		}

		for _, object := range readObjects(t, files...) {
			switch kind := object.GetKind(); kind {
			case "Namespace":
				known[object.GetName()] = true
			case "RunnerJob", "RunnerJobBatch", "RunnerLog":
				t.Errorf("%s has a %s, which only the operator creates", folder, kind)
			}

			if namespace := object.GetNamespace(); namespace != "" && !known[namespace] {
				t.Errorf("%s: namespace %s of %s %s comes after it", folder, namespace, object.GetKind(), object.GetName())
			}
		}
	}
}

// The objects in docs/start/runners.md can be applied, and are those of the file.
func TestStartSample(t *testing.T) {
	t.Parallel()

	ensureNamespace(t, "hyperfleet-system")

	const start = samplesDir + "/start/"

	for _, object := range readObjects(t, start+"fleet.yaml", start+"secrets.yaml") {
		if object.GetKind() == "Namespace" {
			ensureNamespace(t, object.GetName())

			continue
		}

		if err := newStrictClient().Create(t.Context(), object, client.DryRunAll); err != nil {
			t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}

	page, err := os.ReadFile("../../docs/start/runners.md")
	if err != nil {
		t.Fatal(err)
	}

	sample, err := os.ReadFile(start + "fleet.yaml")
	if err != nil {
		t.Fatal(err)
	}

	if !strings.Contains(string(page), "```yaml\n"+string(sample)+"```") {
		t.Errorf("docs/start/runners.md does not contain %sfleet.yaml unchanged", start)
	}
}

// updateTyped updates the object as its Go type marshals it.
func updateTyped(t testing.TB, object *unstructured.Unstructured) {
	t.Helper()

	typed, err := env.Scheme.New(object.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}

	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(object.Object, typed, true); err != nil {
		t.Fatalf("read as %T: %v", typed, err)
	}

	sent, isObject := typed.(client.Object)
	if !isObject {
		t.Fatalf("%T is no object", typed)
	}

	if err := newStrictClient().Update(t.Context(), sent, client.DryRunAll); err != nil {
		t.Errorf("update as %T: %v", typed, err)
	}
}

// Every object that a sample refers to exists in the samples.
func TestSamplesReferToEachOther(t *testing.T) {
	t.Parallel()

	type name struct{ kind, namespace, name string }

	known := map[name]bool{}
	objects := readObjects(t, listSampleFiles(t)...)

	for _, object := range objects {
		known[name{object.GetKind(), object.GetNamespace(), object.GetName()}] = true
	}

	for _, object := range objects {
		for path, kind := range map[string]string{
			"spec.templateRef.name":          "HypervisorMachineTemplate",
			"spec.hypervisorClusterRef.name": "HypervisorCluster",
		} {
			found := getNested(t, object, path)
			if found == nil {
				continue
			}

			wanted := name{kind: kind, name: found.(string)}
			if kind != "HypervisorCluster" {
				wanted.namespace = object.GetNamespace()
			}

			if !known[wanted] {
				t.Errorf("%s %s names %v, which is no sample", object.GetKind(), object.GetName(), wanted)
			}
		}

		visitSecretRefs(object.Object["spec"], func(secret, namespace string) {
			if namespace == "" {
				namespace = "hyperfleet-system"
			}

			if !known[name{"Secret", namespace, secret}] {
				t.Errorf("%s %s names Secret %s/%s, which is no sample", object.GetKind(), object.GetName(), namespace, secret)
			}
		})
	}
}

// visitSecretRefs visits the references to Secrets in a spec.
func visitSecretRefs(node any, visit func(name, namespace string)) {
	switch value := node.(type) {
	case list:
		for _, item := range value {
			visitSecretRefs(item, visit)
		}
	case anyMap:
		if ref, isRef := value["secretKeyRef"].(anyMap); isRef {
			name, _ := ref["name"].(string)
			namespace, _ := ref["namespace"].(string)
			visit(name, namespace)
		}

		for _, item := range value {
			visitSecretRefs(item, visit)
		}
	}
}

// The cloud-init data of every sample template can be rendered.
func TestSampleTemplatesRender(t *testing.T) {
	t.Parallel()

	documents, err := filepath.Glob("testdata/document/*.yaml")
	if err != nil || len(documents) == 0 {
		t.Fatalf("list the document's samples: %d found, error %v", len(documents), err)
	}

	rendered := 0

	for _, object := range readObjects(t, append(documents, listSampleFiles(t)...)...) {
		if object.GetKind() != "HypervisorMachineTemplate" {
			continue
		}

		rendered++

		t.Run(object.GetName(), func(t *testing.T) {
			t.Parallel()

			var template hfv1.HypervisorMachineTemplate
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &template); err != nil {
				t.Fatal(err)
			}

			if _, err := cloudinit.Render(newRenderInput(&template)); err != nil {
				t.Error(err)
			}
		})
	}

	if rendered == 0 {
		t.Error("no template was rendered")
	}
}

func newRenderInput(template *hfv1.HypervisorMachineTemplate) cloudinit.Input {
	in := cloudinit.Input{
		InstanceID: "0e1f-uid", Hostname: "sample", FQDN: "sample.example.com", Network: template.Spec.Network,
		Vars: cloudinit.Vars{
			WorkloadMethod: "runner-token", BootstrapMethod: "runner-token", RunnerName: "sample", RunnerToken: "token-value",
			RegistrationURL: "https://github.com/example", Labels: cloudinit.List{"self-hosted"}, Hostname: "sample",
			FQDN: "sample.example.com", NetworkMode: "dhcp", ClaimName: "sample", Namespace: "ci",
		},
	}

	if template.Spec.Network.AddressPool() != nil {
		in.Addresses, in.Vars.Gateway = []netip.Prefix{netip.MustParsePrefix("192.168.30.10/24")}, "192.168.30.1"
	}

	if data := template.Spec.CloudInit; data != nil {
		in.UserData, in.MetaData, in.NetworkData = data.UserData, data.MetaData, data.NetworkData
	}

	return in
}

// The document's own objects can be applied. They differ from the document where it is wrong: an
// organization's URL contains {org}, a download needs its checksum, no program fits into user data, and
// httpClient is indented like github.
func TestDocumentSamplesApply(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("testdata/document/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("list the document's samples: %d found, error %v", len(files), err)
	}

	for _, file := range files {
		for _, object := range readObjects(t, file) {
			t.Run(filepath.Base(file), func(t *testing.T) {
				t.Parallel()

				// Some of our own samples, which another test applies, have the same names.
				object.SetName("document-" + object.GetName())

				if object.GetKind() != "HypervisorCluster" {
					object.SetNamespace("default")
				}

				if err := newStrictClient().Create(t.Context(), object, client.DryRunAll); err != nil {
					t.Error(err)
				}
			})
		}
	}
}
