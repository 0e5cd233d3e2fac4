// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"golang.org/x/sys/windows"
)

// Flags of ExitWindowsEx (winuser.h) and its reason (reason.h): a planned shutdown because of an application.
const (
	exitPowerOff      = 0x00000008
	exitForceIfHung   = 0x00000010
	reasonApplication = 0x00040000
	reasonPlanned     = 0x80000000
	shutdownPrivilege = "SeShutdownPrivilege"
)

// PowerOff powers off the machine on which it runs, with the reason "planned, application" in its event log. If the call
// fails, PowerOff runs shutdown.exe.
func PowerOff(ctx context.Context) error {
	err := enableShutdown()
	if err == nil {
		err = windows.ExitWindowsEx(exitPowerOff|exitForceIfHung, reasonApplication|reasonPlanned)
	}

	if err == nil {
		return nil
	}

	err = fmt.Errorf("power off: %w", err)

	if runErr := exec.CommandContext(ctx, "shutdown.exe", "/s", "/f", "/t", "0", "/d", "p:4:1").Run(); runErr != nil {
		return errors.Join(err, fmt.Errorf("run shutdown.exe: %w", runErr))
	}

	return nil
}

// enableShutdown enables the privilege of the process to shut down the machine, which its account must have.
func enableShutdown() error {
	var token windows.Token

	err := windows.OpenProcessToken(windows.CurrentProcess(), windows.TOKEN_ADJUST_PRIVILEGES|windows.TOKEN_QUERY, &token)
	if err != nil {
		return fmt.Errorf("open token of the process: %w", err)
	}
	defer token.Close() //nolint:errcheck // a handle

	name, err := windows.UTF16PtrFromString(shutdownPrivilege)
	if err != nil {
		return err
	}

	privileges := windows.Tokenprivileges{PrivilegeCount: 1}
	if err := windows.LookupPrivilegeValue(nil, name, &privileges.Privileges[0].Luid); err != nil {
		return fmt.Errorf("look up %s: %w", shutdownPrivilege, err)
	}

	privileges.Privileges[0].Attributes = windows.SE_PRIVILEGE_ENABLED

	if err := windows.AdjustTokenPrivileges(token, false, &privileges, 0, nil, nil); err != nil {
		return fmt.Errorf("enable %s: %w", shutdownPrivilege, err)
	}

	return nil
}
