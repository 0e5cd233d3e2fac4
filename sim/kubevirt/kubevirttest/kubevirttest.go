// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirttest

import (
	"testing"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/sim/kubevirt"
)

// New starts a cluster and stops it when the test ends. The test fails if a client created an object that
// KubeVirt rejects, or if the cluster itself had an error. Create namespaces before you call New: tests
// clean up in reverse order, and the cluster must stop before the namespaces are deleted.
func New(t testing.TB, config *rest.Config, options kubevirt.Options) *kubevirt.Cluster {
	t.Helper()

	c, err := kubevirt.Start(config, options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close KubeVirt: %v", err)
		}

		for _, v := range c.Violations() {
			t.Errorf("kubevirt: violation: %s: %s", v.Object, v.Message)
		}

		for _, err := range c.Problems() {
			t.Errorf("kubevirt: %v", err)
		}
	})

	return c
}
