// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// deploy is the folder of the manifests that are applied to a cluster.
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

		return kube.Run(m, &env,
			kube.WithCRDs(deploy+"base/namespace.yaml", deploy+"crds", deploy+"rbac/hosts.yaml", deploy+"base/hosts.yaml"),
			kube.WithControllerManager())
	}, "cmd/hyperfleet")
}
