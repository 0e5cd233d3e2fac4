// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/windows"
)

// reloadTimeout is how long the simulated Docker waits.
const reloadTimeout = 2 * time.Minute

// runDocker creates the event that makes dockerd reload its configuration (setupConfigReloadTrap in moby's
// daemon_windows.go) after a while, as dockerd does, waits for it, and prints the configuration.
func runDocker() {
	name, err := windows.UTF16PtrFromString(fmt.Sprintf(`Global\docker-daemon-config-%d`, os.Getpid()))
	if err != nil {
		fail("encode name", err)
	}

	fmt.Print("starting\r\n")
	time.Sleep(2 * time.Second)

	event, err := windows.CreateEvent(nil, 0, 0, name)
	if err != nil {
		fail("create event", err)
	}

	if _, err := windows.WaitForSingleObject(event, uint32(reloadTimeout.Milliseconds())); err != nil {
		fail("wait for event", err)
	}

	fmt.Print("reloaded ", readFile(os.Args[1]), "\r\n")
}
