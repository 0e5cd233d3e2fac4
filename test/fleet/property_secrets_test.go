// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"context"
	"strings"
	"testing"

	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
)

// newManagedSecret returns the CI platform's Secret as External Secrets Operator creates it.
func newManagedSecret(namespace, pat string) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: "github",
			Labels:      map[string]string{"reconcile.external-secrets.io/managed": "true"},
			Annotations: map[string]string{"reconcile.external-secrets.io/data-hash": "0f3c"},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "external-secrets.io/v1", Kind: "ExternalSecret", Name: "github", UID: "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
			}},
		},
		Data: map[string][]byte{"pat": []byte(pat)},
	}
}

// revoked is a token that the CI platform rejects.
const revoked = "ghp_revoked0000000000000000000000000000"

// secretState is a state in which External Secrets Operator may leave a Secret.
type secretState struct {
	name string
	// key and value are the data. If key is "", the Secret does not exist.
	key, value string
	// isValid is true if the template is ready with the Secret. Otherwise reason is the reason of its condition,
	// or "" if any reason is correct.
	isValid bool
	reason  string
}

// secretStates returns all states.
func secretStates() []any {
	return []any{
		secretState{name: "missing", reason: "SecretNotFound"},
		secretState{name: "wrong key", key: "token", value: githubtest.PAT, reason: "SecretKeyNotFound"},
		secretState{name: "revoked", key: "pat", value: revoked},
		secretState{name: "valid", key: "pat", value: githubtest.PAT, isValid: true},
		secretState{name: "valid, with a line end", key: "pat", value: githubtest.PAT + "\n", isValid: true},
	}
}

// setSecretState brings a Secret into a state: it updates, creates or deletes it.
func (w *fixture) setSecretState(name string, state secretState) string {
	secret := newManagedSecret(w.Namespace, "")
	secret.Name = name

	there, err := w.get(secret)

	switch {
	case err != nil:
		return err.Error()
	case state.key == "":
		return w.delete(secret)
	}

	secret.Data = map[string][]byte{state.key: []byte(state.value)}
	if !there {
		return w.create(secret)
	}

	if err := w.Client.Update(context.Background(), secret); err != nil {
		return err.Error()
	}

	return ""
}

// testExternalSecrets checks that the operator uses the current value of a managed Secret, whatever happened to
// the Secret (created late, rotated, wrong key, deleted), reports what is wrong with it, and never
// shows the value.
func testExternalSecrets(t *testing.T, w *fixture) {
	t.Helper()

	property.Check(t, "the current value of the Secret is used", newOptions(4, 8), prop.ForAllNoShrink(func(states []secretState) string {
		name := w.newName("kept")
		template := w.NewTemplate()
		template.Name = name
		template.Spec.Bootstrap.Config.GitHub.Credentials = &v1alpha1.SecretValueSource{
			SecretKeyRef: v1alpha1.SecretKeySelector{Name: name, Key: "pat"},
		}

		if text := w.create(template); text != "" {
			return text
		}

		for i, state := range states {
			want := state
			if state.key == "" && i > 0 {
				want = states[i-1] // the operator keeps a Secret that is deleted
			}

			if text := firstProblem(
				func() string { return w.setSecretState(name, state) },
				func() string { return w.waitForSecretState(template, want) },
			); text != "" {
				return state.name + ": " + text
			}
		}

		return firstProblem(
			func() string { return w.delete(template) },
			func() string { return w.waitForDeletion(template) },
			func() string { return w.setSecretState(name, secretState{}) },
		)
	}, gen.SliceOfN(2, gen.OneConstOf(secretStates()...))))
}

// waitForSecretState waits until the condition of the template matches the state of its Secret.
func (w *fixture) waitForSecretState(template *v1alpha1.HypervisorMachineTemplate, want secretState) string {
	text := w.Await(template.Name+" matching the state of its Secret", func() (bool, string) {
		if _, err := w.get(template); err != nil {
			return false, err.Error()
		}

		ready := meta.FindStatusCondition(template.Status.Conditions, step.Ready)

		return ready != nil && (ready.Status == "True") == want.isValid && ready.Status != "Unknown" &&
			(want.reason == "" || ready.Reason == want.reason), describeConditions(template)
	})
	if text != "" {
		return text
	}

	if shown := describeConditions(template); want.value != "" && strings.Contains(shown, strings.TrimSpace(want.value)) {
		return "the Secret's value is shown: " + shown
	}

	return ""
}
