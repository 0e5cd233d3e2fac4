// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package external

import (
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// SetTimeout replaces the timeout of calls.
func SetTimeout(connection hypervisor.Connection, timeout time.Duration) {
	connection.(*Provider).timeout = timeout
}
