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

// UpdateFault is what is wrong with a Mac's updates.
type UpdateFault string

// What can be wrong.
const (
	// UpdatesWell is nothing.
	UpdatesWell UpdateFault = ""
	// UpdatesUnreachable is Apple's server.
	UpdatesUnreachable UpdateFault = "unreachable"
	// UpdateFull is a disk without room for it.
	UpdateFull UpdateFault = "full"
	// UpdateDownload is a download that fails, UpdateHangs one that never ends.
	UpdateDownload UpdateFault = "download"
	UpdateHangs    UpdateFault = "hang"
	// UpdateOwner is a user who owns no volume.
	UpdateOwner UpdateFault = "owner"
	// UpdateStays is a host that restarts, and has the version that it had.
	UpdateStays UpdateFault = "stays"
	// UpdateGone is a host that does not come back from its restart.
	UpdateGone UpdateFault = "gone"
)

// SetMacOS says which macOS a Mac has, and which Apple offers it.
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

// MacOS is the version that a Mac has.
func (h *Host) MacOS() string { return strings.TrimSpace(h.Read("/sim/macos/version")) }

// BreakUpdates says what is wrong with a Mac's updates from now on.
func (h *Host) BreakUpdates(fault UpdateFault) error {
	return os.WriteFile(h.box.path("/sim/macos/fault"), []byte(fault+"\n"), 0o600)
}

// restarts has a Mac start anew when it asks for that itself, until it is closed.
func (h *Host) restarts(asked *os.File) {
	word := make([]byte, 16)

	for {
		if _, err := asked.Read(word); err != nil {
			return
		}

		if strings.TrimSpace(h.Read("/sim/macos/fault")) == string(UpdateGone) {
			h.SetDown(true)

			continue
		}

		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		if err := h.Restart(ctx); err != nil {
			h.note(fmt.Sprintf("restart: %v", err))
		}

		cancel()
	}
}
