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

// parseObject parses one object.
func parseObject(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()

	object := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(text), &object.Object); err != nil {
		t.Fatalf("read object: %v\n%s", err, text)
	}

	return object
}

// newStrictClient returns a client for which the API server rejects unknown fields.
func newStrictClient() client.Client {
	return client.WithFieldValidation(env.Client, "Strict")
}
