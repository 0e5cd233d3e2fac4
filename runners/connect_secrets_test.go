// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

// Of a Secret of another namespace what is around it is looked at first; its values are asked for
// only where it lets the namespace have them.
func TestSecretsThatAllowNothingAreNotRead(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		allowed, from string
		reads         int
		reason        string
	}{
		"its own namespace": {"", "platform", 1, ""},
		"a shared one":      {"team-a, team-b", "team-b", 1, ""},
		"another's":         {"", "team-a", 0, "SecretNotAllowed"},
		"one of others":     {"team-b", "team-a", 0, "SecretNotAllowed"},
	} {
		reads := 0
		reader := interceptor.NewClient(fake.NewClientBuilder().WithObjects(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "platform", Name: "token", Annotations: map[string]string{v1alpha1.AnnotationAllowedNamespaces: tt.allowed},
			},
			Data: map[string][]byte{"key": []byte("value")},
		}).Build(), interceptor.Funcs{
			Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, opts ...client.GetOption) error {
				if _, whole := into.(*corev1.Secret); whole {
					reads++
				}

				return c.Get(ctx, key, into, opts...)
			},
		})
		secrets := &connect.Secrets{Reader: reader}

		value, err := secrets.Value(t.Context(), v1alpha1.SecretKeySelector{Namespace: "platform", Name: "token", Key: "key"}, tt.from)
		if reads != tt.reads || errclass.Reason(err, "") != tt.reason || (value == "value") != (tt.reason == "") {
			t.Errorf("%s: %d reads, %q, error %v", name, reads, value, err)
		}
	}
}

// Who may not read a Secret of another namespace is not told whether it is there, whatever is asked
// for of it.
func TestSecretsThatAllowNothingAreNotThere(t *testing.T) {
	t.Parallel()

	secrets := &connect.Secrets{OperatorNamespace: "operator", Reader: fake.NewClientBuilder().WithObjects(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "platform", Name: "secret-a"}, Data: map[string][]byte{"key": []byte("value")},
	}).Build()}

	for _, optional := range []bool{false, true} {
		told := map[string]bool{}

		for _, name := range []string{"secret-a", "secret-b"} {
			for _, key := range []string{"key", "other"} {
				value, err := secrets.Value(t.Context(),
					v1alpha1.SecretKeySelector{Namespace: "platform", Name: name, Key: key, Optional: &optional}, "team-a")
				told[strings.ReplaceAll(fmt.Sprint(value, errclass.Reason(err, ""), err), name, "NAME")] = true
			}
		}

		if len(told) != 1 {
			t.Errorf("optional %t: it is told apart: %v", optional, told)
		}
	}

	if _, err := secrets.Value(t.Context(), v1alpha1.SecretKeySelector{Namespace: "platform", Name: "secret-b", Key: "key"}, ""); !credential.Missing(err) {
		t.Errorf("an administrator is not told that it is missing: %v", err)
	}
}
