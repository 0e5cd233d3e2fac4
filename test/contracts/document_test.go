// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

// TestDocumentExamplesAsWritten applies the YAML examples of document 000 as they stand there. The table says what
// is wrong with those that are not accepted. An example that is a part of a spec is applied in a valid object.
func TestDocumentExamplesAsWritten(t *testing.T) {
	t.Parallel()

	ensureNamespace(t, "hyperfleet-system")
	ensureNamespace(t, "ci-system")

	const folder = "testdata/document/as-written/"

	tests := map[string]struct {
		// base is the object whose spec gets the example.
		base string
		want string
	}{
		"01-cluster.yaml":          {},
		"02-template.yaml":         {want: "did not find expected key"}, // httpClient is indented less than its siblings
		"03-pool.yaml":             {},
		"04-claim.yaml":            {},
		"05-template-network.yaml": {},
		"06-dhcp.yaml":             {base: baseTemplate},
		"07-manual-claim.yaml":     {},
		"08-github-secret.yaml":    {want: "illegal base64"}, // placeholders
		"10-token-secret.yaml":     {want: "illegal base64"},
		"11-app-secret.yaml":       {want: "illegal base64"},
		"12-bootstrap.yaml":        {base: baseTemplate},
		"14-proxmox-secrets.yaml":  {want: "illegal base64"}, // the certificate ends with dots
		"16-download.yaml":         {base: baseTemplate},
		"19-usage.yaml":            {},
		"20-validation.yaml":       {base: baseCluster, want: "dns.registerVMs needs dns.domain and dns.dnsProvider"},
	}

	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := applyExample(t, folder+name, tc.base)

			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("want %q in: %v", tc.want, err)
			}
		})
	}

	files, err := filepath.Glob(folder + "*.yaml")
	if err != nil {
		t.Fatal(err)
	}

	for _, file := range files {
		name := filepath.Base(file)
		if _, isListed := tests[name]; !isListed && name != "13-user-data.yaml" && name != "17-container.yaml" {
			t.Errorf("no test applies %s", name)
		}
	}
}

// TestDocumentRoleAsWritten applies the Role of document 000, which is in the file of the Secret with a placeholder. It
// permits its holder to read that Secret and no other.
func TestDocumentRoleAsWritten(t *testing.T) {
	t.Parallel()

	_, text, found := strings.Cut(readText(t, "testdata/document/as-written/08-github-secret.yaml"), "\n---\n")

	var role rbacv1.Role
	if err := yaml.UnmarshalStrict([]byte(text), &role); err != nil || !found {
		t.Fatal(err)
	}

	namespace := env.Namespace(t)
	role.Namespace = namespace
	env.Create(t, &role)
	env.Create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "reader"}},
	})

	for _, name := range []string{"github-credentials", "other"} {
		env.Create(t, &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{"pat-token": []byte("x")},
		})
	}

	reader, err := client.New(env.ServiceAccount(t, namespace, "reader"), client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	read := func(name string) error {
		_, err := credential.ReadSecret(t.Context(), reader, client.ObjectKey{Namespace: namespace, Name: name}, "pat-token")

		return err
	}

	// The API server learns of a new Role after a moment.
	for deadline := time.Now().Add(time.Minute); read("github-credentials") != nil && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond)
	}

	if err := read("github-credentials"); err != nil {
		t.Errorf("the Secret of the Role: %v", err)
	}

	if err := read("other"); errclass.ReasonOf(err, "") != credential.ReasonSecretForbidden {
		t.Errorf("another Secret: %v", err)
	}
}

// applyExample creates the objects of a file, or base with the file as a part of its spec, and returns the first error.
func applyExample(t *testing.T, file, base string) error {
	t.Helper()

	if base != "" {
		object := parseObject(t, base)

		var part anyMap
		if err := yaml.UnmarshalStrict([]byte(readText(t, file)), &part); err != nil {
			return err
		}

		spec, isWhole := part["spec"].(anyMap)
		if !isWhole {
			spec = part
		}

		for key, value := range spec {
			if err := unstructured.SetNestedField(object.Object, value, "spec", key); err != nil {
				return err
			}
		}

		return newStrictClient().Create(t.Context(), object, client.DryRunAll)
	}

	objects, err := kubeproc.ReadObjects(file)
	if err != nil {
		return err
	}

	for _, object := range objects {
		object.SetName("as-written-" + object.GetName())

		if object.GetNamespace() == "" && object.GetKind() != "HypervisorCluster" {
			object.SetNamespace("default")
		}

		if err := newStrictClient().Create(t.Context(), object, client.DryRunAll); err != nil {
			return err
		}
	}

	return nil
}

func readText(t *testing.T, file string) string {
	t.Helper()

	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	return string(text)
}

// TestDocumentUserDataAsWritten renders the cloud-init examples of document 000 that are not templates of a spec.
func TestDocumentUserDataAsWritten(t *testing.T) {
	t.Parallel()

	for name, want := range map[string]string{"13-user-data.yaml": "", "17-container.yaml": "the format is unknown to cloud-init"} {
		in := newRenderInput(&hfv1.HypervisorMachineTemplate{})
		in.UserData = readText(t, "testdata/document/as-written/"+name)

		_, err := cloudinit.Render(in)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// TestDocumentTemplatesRenderAsWritten renders the cloud-init texts of the examples that are templates.
func TestDocumentTemplatesRenderAsWritten(t *testing.T) {
	t.Parallel()

	for _, name := range []string{"05-template-network.yaml", "16-download.yaml", "19-usage.yaml"} {
		var example struct {
			Spec      hfv1.HypervisorMachineTemplateSpec `json:"spec"`
			CloudInit *hfv1.CloudInit                    `json:"cloudInit"`
		}
		if err := yaml.Unmarshal([]byte(readText(t, "testdata/document/as-written/"+name)), &example); err != nil {
			t.Fatal(err)
		}

		if example.CloudInit != nil {
			example.Spec.CloudInit = example.CloudInit
		}

		if _, err := cloudinit.Render(newRenderInput(&hfv1.HypervisorMachineTemplate{Spec: example.Spec})); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
