// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"os"
	"path/filepath"
	"testing"

	virtv1 "kubevirt.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// deploy is the folder of the manifests.
const deploy = "../../../deploy/"

var (
	// env is the API server of all tests.
	env *kube.Env
	// binary is the path of the operator's program.
	binary string
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	return exe.RunWith(func(dir string) int {
		binary = filepath.Join(dir, "hyperfleet")

		return kube.Run(m, &env,
			kube.WithCRDs(deploy+"base/namespace.yaml", deploy+"crds", deploy+"rbac/networking.yaml", deploy+"base/networking.yaml"),
			kube.WithControllerManager(), kube.WithScheme(virtv1.AddToScheme))
	}, "cmd/hyperfleet")
}
