// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kit_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// secretReader is a reader that has one Secret.
type secretReader struct {
	client.Reader

	secret *corev1.Secret
	err    error
}

func (k secretReader) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if k.err == nil {
		*into.(*corev1.Secret) = *k.secret
	}

	return k.err
}

// Every error of reading a Secret has a class and a reason. Checks run before the key is looked up.
func TestReadErrors(t *testing.T) {
	t.Parallel()

	resource := schema.GroupResource{Resource: "secrets"}
	refusal := errors.New("not for you")

	for name, tt := range map[string]struct {
		key    string
		err    error
		check  error
		reason string
		class  errclass.Class
		says   string
	}{
		"there":                       {key: "token"},
		"no Secret":                   {key: "token", err: apierrors.NewNotFound(resource, "s"), reason: "SecretNotFound", class: errclass.Configuration, says: "read secret ns/s: it does not exist"},
		"no right":                    {key: "token", err: apierrors.NewForbidden(resource, "s", nil), reason: "SecretForbidden", class: errclass.Configuration, says: "`get` on secrets in namespace ns"},
		"no answer":                   {key: "token", err: context.DeadlineExceeded, reason: "SecretUnavailable", class: errclass.Transient, says: "read secret ns/s: context deadline"},
		"no key":                      {key: "other", reason: "SecretKeyNotFound", class: errclass.Configuration, says: `no key "other"`},
		"nothing under it":            {key: "empty", reason: "SecretKeyNotFound", class: errclass.Configuration, says: "add the value"},
		"refused":                     {key: "token", check: refusal, class: errclass.Transient, says: "not for you"},
		"refused, and there's no key": {key: "other", check: refusal, class: errclass.Transient, says: "not for you"},
	} {
		reader := secretReader{err: tt.err, secret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
			Data:       map[string][]byte{"token": []byte("s3cr3t"), "empty": nil},
		}}

		secret, err := credential.ReadSecret(t.Context(), reader, types.NamespacedName{Namespace: "ns", Name: "s"}, tt.key,
			func(*corev1.Secret) error { return tt.check })

		if tt.says == "" {
			if err != nil || string(secret.Data[tt.key]) != "s3cr3t" {
				t.Errorf("%s: %v", name, err)
			}

			continue
		}

		if err == nil || !strings.Contains(err.Error(), tt.says) || errclass.ReasonOf(err, "") != tt.reason || errclass.ClassOf(err) != tt.class {
			t.Errorf("%s: %s %s: %v", name, errclass.ClassOf(err), errclass.ReasonOf(err, ""), err)
		}

		missing := tt.reason == "SecretNotFound" || tt.reason == "SecretKeyNotFound"
		if credential.IsMissing(err) != missing {
			t.Errorf("%s: missing %v", name, !missing)
		}
	}
}

// A kubeconfig may be sent to the server that it names if its Secret allows the server.
func TestKubeconfigIsSentOnlyToItsServer(t *testing.T) {
	t.Parallel()

	const kubeconfig = `{apiVersion: v1, kind: Config, current-context: a,
contexts: [{name: a, context: {cluster: a}}], clusters: [{name: a, cluster: {server: "https://a.example.com"}}]}`

	for list, allowed := range map[string]bool{"a.example.com": true, "b.example.com": false} {
		reader := secretReader{secret: &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"hyperfleet.io/allowed-servers": list}},
			Data:       map[string][]byte{"kubeconfig": []byte(kubeconfig)},
		}}

		data, err := credential.ReadKubeconfig(t.Context(), reader, types.NamespacedName{}, "kubeconfig")
		if allowed != (string(data) == kubeconfig) || !allowed && errclass.ReasonOf(err, "") != credential.ReasonServerNotAllowed {
			t.Errorf("%s: %v", list, err)
		}
	}
}
