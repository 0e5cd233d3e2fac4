// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// UpdateFault is a fault of a Mac's software updates.
type UpdateFault string

// The faults of software updates.
const (
	// UpdateFaultNone means that updates work.
	UpdateFaultNone UpdateFault = ""
	// UpdateServerUnreachable makes Apple's server unreachable.
	UpdateServerUnreachable UpdateFault = "unreachable"
	// UpdateDiskFull makes the download fail because the disk is full.
	UpdateDiskFull UpdateFault = "full"
	// UpdateDownloadFails makes the download fail, and UpdateDownloadHangs makes the download run
	// forever.
	UpdateDownloadFails UpdateFault = "download"
	UpdateDownloadHangs UpdateFault = "hang"
	// UpdateNotOwner makes the update fail because the user owns no volume.
	UpdateNotOwner UpdateFault = "owner"
	// UpdateKeepsVersion makes the host restart with the old version.
	UpdateKeepsVersion UpdateFault = "stays"
	// UpdateHostUnreachable makes the host unreachable after its restart.
	UpdateHostUnreachable UpdateFault = "gone"
)

// SetMacOS sets the macOS version of a Mac and the versions that Apple offers to the Mac.
func (h *Host) SetMacOS(version string, offers ...string) error {
	for path, text := range map[string]string{
		"/sim/macos/version": version + "\n", "/sim/macos/offers": strings.Join(append(offers, ""), "\n"),
	} {
		if err := os.WriteFile(h.box.path(path), []byte(text), 0o600); err != nil {
			return fmt.Errorf("set macOS of %s: %w", h.options.Name, err)
		}
	}

	return nil
}

// MacOSVersion returns the macOS version of a Mac.
func (h *Host) MacOSVersion() string { return strings.TrimSpace(h.ReadFile("/sim/macos/version")) }

// SetUpdateFault sets the fault of a Mac's software updates.
func (h *Host) SetUpdateFault(fault UpdateFault) error {
	return os.WriteFile(h.box.path("/sim/macos/fault"), []byte(fault+"\n"), 0o600)
}

// serveRestarts restarts a Mac each time the Mac requests a restart through the FIFO, until the FIFO
// is closed.
func (h *Host) serveRestarts(requests *os.File) {
	buffer := make([]byte, 16)

	for {
		if _, err := requests.Read(buffer); err != nil {
			return
		}

		if strings.TrimSpace(h.ReadFile("/sim/macos/fault")) == string(UpdateHostUnreachable) {
			h.SetDown(true)

			continue
		}

		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := h.Restart(ctx); err != nil {
			h.recordUnknown(fmt.Sprintf("restart: %v", err))
		}

		cancel()
	}
}
