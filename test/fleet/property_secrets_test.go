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

// kept is the forge's Secret as External Secrets Operator keeps it.
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

// revoked is a token that the forge does not take any more.
const revoked = "ghp_revoked0000000000000000000000000000"

// keeping is what External Secrets Operator makes of a Secret.
type keeping struct {
	name string
	// key and value are what is in it; an empty key is no Secret at all.
	key, value string
	// good says that the template can work with it; else reason says why not, where that is
	// the Secret's matter.
	good   bool
	reason string
}

func keepings() []any {
	return []any{
		keeping{name: "not there yet, or deleted", reason: "SecretNotFound"},
		keeping{name: "under another key", key: "token", value: githubtest.PAT, reason: "SecretKeyNotFound"},
		keeping{name: "revoked", key: "pat", value: revoked},
		keeping{name: "good", key: "pat", value: githubtest.PAT, good: true},
		keeping{name: "good, with the file's line end", key: "pat", value: githubtest.PAT + "\n", good: true},
	}
}

// keep brings a Secret into a state: in place where it is there, else as another object of the name.
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

// Whatever a Secret that others keep goes through (made late, rotated, under another key,
// gone, made anew): the operator uses what is in it now, says what it lacks, and shows
// nothing of it.
func externalSecrets(t *testing.T, w *world) {
	t.Helper()

	property.Check(t, "what is in the Secret now counts", lives(4, 8), prop.ForAllNoShrink(func(states []keeping) string {
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

// counts waits until the template says what its Secret makes of it.
func (w *world) counts(template *v1alpha1.HypervisorMachineTemplate, want keeping) string {
	text := w.Await(template.Name+" being as its Secret is", func() (bool, string) {
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

	if said := state(template); want.value != "" && strings.Contains(said, strings.TrimSpace(want.value)) {
		return "the Secret's value is shown: " + said
	}

	return ""
}
