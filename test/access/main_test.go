// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"os"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/ocm/crds"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/postgres"
)

var (
	env      *kube.Env
	database *postgres.Server
)

func TestMain(m *testing.M) {
	os.Exit(postgres.RunWith(func(s *postgres.Server) int {
		database = s

		return kube.Run(m, &env, kube.WithControllerManager(), kube.WithSetup(crds.InstallHub))
	}))
}
