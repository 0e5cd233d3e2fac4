// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/test/kube"
)

// env is the API server that the tests of this package share.
var env *kube.Env

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.WithCRDs("../../deploy/crds"))
}

// parse reads one object.
func parse(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()

	object := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(text), &object.Object); err != nil {
		t.Fatalf("read object: %v\n%s", err, text)
	}

	return object
}

// strict is a client that has the API server refuse fields it does not know.
func strict() client.Client {
	return client.WithFieldValidation(env.Client, "Strict")
}
