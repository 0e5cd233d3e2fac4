// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	virtv1 "kubevirt.io/api/core/v1"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// deploy has what is applied to a cluster.
const deploy = "../../../deploy/"

var (
	// env is the API server of all tests.
	env *kube.Env
	// binary is the operator.
	binary string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	return exe.RunWith(func(dir string) int {
		binary = filepath.Join(dir, "hyperfleet")

		return kube.Run(m, func(e *kube.Env) { env = e },
			kube.WithCRDs(deploy+"base/namespace.yaml", deploy+"crds", deploy+"rbac/networking.yaml", deploy+"base/networking.yaml"),
			kube.WithControllerManager(),
			kube.WithScheme(infrav1.AddToScheme, func(s *runtime.Scheme) error { return virtv1.AddToScheme(s) }))
	}, "cmd/hyperfleet")
}
