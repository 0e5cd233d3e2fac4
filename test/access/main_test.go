// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/sim/ocm/crds"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

var (
	env      *kube.Env
	database *postgres.Server
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())

	os.Exit(postgres.RunWith(func(s *postgres.Server) int {
		database = s

		return kube.Run(m, func(e *kube.Env) {
			env = e

			if err := crds.InstallHub(context.Background(), e.Config); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}, kube.WithControllerManager())
	}))
}
