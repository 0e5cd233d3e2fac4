// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"log/slog"
	"time"

	"golang.org/x/sys/windows/registry"
)

const (
	// setupTimeout is how long the service waits for the end of Windows' setup. The first boot of a clone takes minutes.
	setupTimeout = 20 * time.Minute
	// setupKey and setupValue are not zero after sysprep, until the first boot of a clone has ended.
	setupKey   = `SYSTEM\Setup`
	setupValue = "SystemSetupInProgress"
)

// waitForSetup waits until Windows has ended its setup, because Windows starts services before it restarts for the last
// time, which would interrupt a job.
func waitForSetup(clock Clock, log *slog.Logger) {
	for deadline := clock.Now().Add(setupTimeout); isBeingSetUp(); {
		if clock.Now().After(deadline) {
			log.Warn("Windows has not ended its setup: a restart may interrupt the job", "waited", setupTimeout)

			return
		}

		<-clock.After(mediumInterval)
	}
}

// isBeingSetUp reports whether Windows is being set up.
func isBeingSetUp() bool {
	key, err := registry.OpenKey(registry.LOCAL_MACHINE, setupKey, registry.QUERY_VALUE)
	if err != nil {
		return false
	}
	defer key.Close() //nolint:errcheck // a handle

	value, _, err := key.GetIntegerValue(setupValue)

	return err == nil && value != 0
}
