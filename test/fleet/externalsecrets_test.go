// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
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

// A Secret that somebody else keeps is one as any other: what is rotated in it, or made again
// after it was gone, is used without a restart.
func TestSecretsOfExternalSecretsOperator(t *testing.T) {
	t.Parallel()

	f := fleet.New(t, env, fleet.Options{})
	if err := f.Client.Delete(t.Context(), kept(f.Namespace, "")); err != nil { // the fleet's own
		t.Fatal(err)
	}

	f.Create(kept(f.Namespace, githubtest.PAT))
	f.Populate(1)
	f.Start()
	f.EventuallyReady(f.NewTemplate())

	f.SetSecret("github", "pat", "ghp_revoked0000000000000000000000000000")
	f.EventuallyCondition(f.NewTemplate(), "Ready", metav1.ConditionFalse, "")

	if err := f.Client.Delete(t.Context(), kept(f.Namespace, "")); err != nil {
		t.Fatal(err)
	}

	f.Create(kept(f.Namespace, githubtest.PAT))
	f.EventuallyReady(f.NewTemplate())

	f.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}})
	f.EventuallyDone(1)
	f.EventuallyClean()
}
