// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// GetIndexValues returns the values by which the cache indexes an object.
func GetIndexValues(obj client.Object, field string) []string {
	switch obj := obj.(type) {
	case *v1alpha1.RunnerJob:
		return jobIndexes()[field](obj)
	case *v1alpha1.MachineClaim:
		return claimIndexes()[field](obj)
	default:
		return nil
	}
}
