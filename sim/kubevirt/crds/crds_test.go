// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crds_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/sim/kubevirt/crds"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

func TestMain(m *testing.M) {
	kube.Main(m, func(e *kube.Env) {
		env = e

		if err := crds.Install(context.Background(), e.Config); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	})
}

var env *kube.Env

// The schemas are KubeVirt's: what they refuse is refused.
func TestSchemasRefuse(t *testing.T) {
	namespace := env.Namespace(t)

	cases := []struct {
		name  string
		iface map[string]any
		taken bool
	}{
		{"an interface", map[string]any{"name": "default", "masquerade": map[string]any{}}, true},
		{"an interface with a place on the bus", map[string]any{"name": "default", "acpiIndex": int64(101)}, true},
		{"an interface without a name", map[string]any{"masquerade": map[string]any{}}, false},
		{"an interface whose name is a number", map[string]any{"name": int64(1)}, false},
	}
	for n, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			vm := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
				"metadata": map[string]any{"name": fmt.Sprintf("vm-%d", n), "namespace": namespace},
				"spec": map[string]any{
					"runStrategy": "Halted",
					"template": map[string]any{"spec": map[string]any{"domain": map[string]any{
						"devices": map[string]any{"interfaces": []any{c.iface}},
					}}},
				},
			}}

			err := env.Client.Create(t.Context(), vm)
			if (err == nil) != c.taken || (err != nil && !apierrors.IsInvalid(err)) {
				t.Errorf("got %v", err)
			}
		})
	}
}
