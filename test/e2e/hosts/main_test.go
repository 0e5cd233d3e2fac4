// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	kitlog "github.com/hyperfleet/hyperfleet/kit/log"
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

func TestMain(m *testing.M) {
	log.SetLogger(kitlog.ToLogr(slog.New(slog.DiscardHandler)))
	os.Exit(run(m))
}

func run(m *testing.M) int {
	return exe.RunWith(func(dir string) int {
		binary = filepath.Join(dir, "hyperfleet")

		return kube.Run(m, func(e *kube.Env) { env = e },
			kube.WithCRDs(deploy+"base/namespace.yaml", deploy+"crds", deploy+"rbac/hosts.yaml", deploy+"base/hosts.yaml"),
			kube.WithControllerManager(), kube.WithScheme(infrav1.AddToScheme))
	}, "cmd/hyperfleet")
}
