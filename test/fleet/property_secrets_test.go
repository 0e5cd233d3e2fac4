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
func kept(namespace, pat string) *corev1.Secret {
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
type keeping struct {
	name string
	// key and value are the data. If key is "", the Secret does not exist.
	key, value string
	// isValid is true if the template is ready with the Secret. Otherwise reason is the reason of its condition,
	// or "" if any reason is correct.
	good   bool
	reason string
}

// secretStates returns all states.
func keepings() []any {
	return []any{
		keeping{name: "missing", reason: "SecretNotFound"},
		keeping{name: "wrong key", key: "token", value: githubtest.PAT, reason: "SecretKeyNotFound"},
		keeping{name: "revoked", key: "pat", value: revoked},
		keeping{name: "valid", key: "pat", value: githubtest.PAT, good: true},
		keeping{name: "valid, with a line end", key: "pat", value: githubtest.PAT + "\n", good: true},
	}
}

// setSecretState brings a Secret into a state: it updates, creates or deletes it.
func (w *world) keep(name string, state keeping) string {
	secret := kept(w.Namespace, "")
	secret.Name = name

	there, err := w.get(secret)

	switch {
	case err != nil:
		return err.Error()
	case state.key == "":
		return w.remove(secret)
	}

	secret.Data = map[string][]byte{state.key: []byte(state.value)}
	if !there {
		return w.make(secret)
	}

	if err := w.Client.Update(context.Background(), secret); err != nil {
		return err.Error()
	}

	return ""
}

// testExternalSecrets checks that the operator uses the current value of a managed Secret, whatever happened to
// the Secret (created late, rotated, wrong key, deleted, recreated), reports what is wrong with it, and never
// shows the value.
func externalSecrets(t *testing.T, w *world) {
	t.Helper()

	property.Check(t, "the current value of the Secret is used", lives(4, 8), prop.ForAllNoShrink(func(states []keeping) string {
		name := w.name("kept")
		template := w.NewTemplate()
		template.Name = name
		template.Spec.Bootstrap.Config.GitHub.Credentials = &v1alpha1.SecretValueSource{
			SecretKeyRef: v1alpha1.SecretKeySelector{Name: name, Key: "pat"},
		}

		if text := w.make(template); text != "" {
			return text
		}

		for _, state := range states {
			if text := first(
				func() string { return w.keep(name, state) },
				func() string { return w.counts(template, state) },
			); text != "" {
				return state.name + ": " + text
			}
		}

		return first(
			func() string { return w.remove(template) },
			func() string { return w.awaitGone(template) },
			func() string { return w.keep(name, keeping{}) },
		)
	}, gen.SliceOfN(2, gen.OneConstOf(keepings()...))))
}

// waitForSecretState waits until the condition of the template matches the state of its Secret.
func (w *world) counts(template *v1alpha1.HypervisorMachineTemplate, want keeping) string {
	text := w.Await(template.Name+" matching the state of its Secret", func() (bool, string) {
		if _, err := w.get(template); err != nil {
			return false, err.Error()
		}

		ready := meta.FindStatusCondition(template.Status.Conditions, step.Ready)

		return ready != nil && (ready.Status == "True") == want.good && ready.Status != "Unknown" &&
			(want.reason == "" || ready.Reason == want.reason), state(template)
	})
	if text != "" {
		return text
	}

	if shown := state(template); want.value != "" && strings.Contains(shown, strings.TrimSpace(want.value)) {
		return "the Secret's value is shown: " + shown
	}

	return ""
}
