// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

// listAccounts returns the service accounts of the operator's areas.
func listAccounts() []string {
	return []string{"hyperfleet-runners", "hyperfleet-networking", "hyperfleet-hosts", "hyperfleet-bridge"}
}

// installAccounts applies the accounts, roles and policies of all areas, and returns a client for each account.
func installAccounts(t *testing.T) map[string]client.Client {
	t.Helper()

	out := map[string]client.Client{}
	for _, account := range listAccounts() {
		as, err := client.New(env.ServiceAccount(t, system, account), client.Options{Scheme: env.Client.Scheme()})
		if err != nil {
			t.Fatal(err)
		}

		out[account] = as
	}

	files, err := filepath.Glob("../../deploy/rbac/*.yaml")
	if err != nil {
		t.Fatal(err)
	}

	for _, base := range []string{"base/serviceaccount", "base/rolebinding", "base/networking", "base/hosts", "bridge/bridge"} {
		files = append(files, "../../deploy/"+base+".yaml")
	}

	for _, file := range files {
		objects, err := kubeproc.ReadObjects(file)
		if err != nil {
			t.Fatal(err)
		}

		for _, object := range objects {
			group := object.GroupVersionKind().Group
			if group != "rbac.authorization.k8s.io" && group != "admissionregistration.k8s.io" && object.GetKind() != "Secret" {
				continue
			}

			//nolint:staticcheck // Apply takes no unstructured object
			if err := env.Client.Patch(t.Context(), object, client.Apply, client.FieldOwner("test"), client.ForceOwnership); err != nil {
				t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
			}
		}
	}

	return out
}

// TestAreasMakeNoTokens checks that no area's account can create a Secret with a token of another account.
func TestAreasMakeNoTokens(t *testing.T) {
	t.Parallel()

	accounts := installAccounts(t)

	for account, as := range accounts {
		for _, other := range listAccounts() {
			for namespace, token := range map[string]corev1.Secret{
				system: {
					ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.ServiceAccountNameKey: other}},
					Type:       corev1.SecretTypeServiceAccountToken,
				},
				metav1.NamespaceSystem: {
					Type: corev1.SecretTypeBootstrapToken, StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef"},
				},
			} {
				token.Namespace, token.Name = namespace, "stolen-"+account+"-"+other

				if text := waitUntilRejected(t, as, &token); text != "" {
					t.Errorf("%s can create a token of %s: %s", account, other, text)
				}
			}
		}
	}
}

// waitUntilRejected creates the object repeatedly until the API server rejects it, because a policy takes effect
// some time after its creation. It returns the last result if this does not happen.
func waitUntilRejected(t *testing.T, as client.Client, object *corev1.Secret) string {
	t.Helper()

	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(pollInterval) {
		made := object.DeepCopy()
		err := as.Create(t.Context(), made)

		switch {
		case apierrors.IsForbidden(err), err != nil && strings.Contains(err.Error(), "hyperfleet-no-token-secrets"):
			return ""
		case err == nil:
			if err := env.Client.Delete(t.Context(), made); err != nil {
				t.Fatal(err)
			}
		case time.Now().After(deadline):
			return err.Error()
		}

		if err == nil && time.Now().After(deadline) {
			return "it was created"
		}
	}
}

// TestAreasReadTheirOwnKeys checks that each area's account can read only its own Secrets, by name.
func TestAreasReadTheirOwnKeys(t *testing.T) {
	t.Parallel()

	accounts := installAccounts(t)

	for account, readable := range map[string]map[string]bool{
		"hyperfleet-networking": {
			"dns-credentials": true, "dns-tsig": true, "guest-kubeconfig": true, "hyperfleet-report-key": false, "hyperfleet-webhooks-ca": false,
			"github-app": false,
		},
		"hyperfleet-hosts": {"dns-tsig": false, "hyperfleet-report-key": false, "hyperfleet-webhooks-ca": false, "github-app": false},
	} {
		for name, want := range readable {
			err := accounts[account].Get(t.Context(), client.ObjectKey{Namespace: system, Name: name}, &corev1.Secret{})
			if apierrors.IsForbidden(err) == want {
				t.Errorf("%s reads %s: error %v, want allowed %v", account, name, err, want)
			}
		}

		if err := accounts[account].List(t.Context(), &corev1.SecretList{}, client.InNamespace(system)); !apierrors.IsForbidden(err) {
			t.Errorf("%s lists Secrets: error %v, want Forbidden", account, err)
		}
	}

	runners := accounts["hyperfleet-runners"]

	var key corev1.Secret
	if err := runners.Get(t.Context(), client.ObjectKey{Namespace: system, Name: "hyperfleet-report-key"}, &key); err != nil {
		t.Fatal(err)
	}

	key.Data = map[string][]byte{"key": []byte(strings.Repeat("k", 32))}
	if err := runners.Update(t.Context(), &key); err != nil {
		t.Errorf("write the report key: %v", err)
	}

	other := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "other"}}
	if err := runners.Create(t.Context(), other); !apierrors.IsForbidden(err) {
		t.Errorf("the account of runners creates a Secret: error %v, want Forbidden", err)
	}

	if err := env.Client.Create(t.Context(), other); err != nil {
		t.Fatal(err)
	}

	if err := runners.Update(t.Context(), other); !apierrors.IsForbidden(err) {
		t.Errorf("the account of runners updates another Secret: error %v, want Forbidden", err)
	}
}
