// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/log"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	kitlog "github.com/hyperfleet/hyperfleet/kit/log"
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
	log.SetLogger(kitlog.Logr(slog.New(slog.DiscardHandler)))
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "hyperfleet-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}
	defer os.RemoveAll(dir)

	binary = filepath.Join(dir, "hyperfleet")

	if out, err := exec.Command("go", "build", "-o", binary, "../../../cmd/hyperfleet").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build the operator: %v\n%s", err, out)

		return 1
	}

	return kube.Run(m, func(e *kube.Env) { env = e },
		kube.WithCRDs(deploy+"base/namespace.yaml", deploy+"crds", deploy+"rbac/hosts.yaml", deploy+"base/hosts.yaml"),
		kube.WithControllerManager(), kube.WithScheme(infrav1.AddToScheme))
}
