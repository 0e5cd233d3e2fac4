// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"syscall"
)

// PowerOff powers off the machine on which it runs. It uses systemctl. If that fails, it uses the poweroff
// program, and then the reboot system call.
func PowerOff(ctx context.Context) error {
	var errs error

	for _, argv := range [][]string{{"systemctl", "poweroff", "--no-block"}, {"poweroff"}} {
		err := exec.CommandContext(ctx, argv[0], argv[1:]...).Run() //nolint:gosec // the arguments are constant
		if err == nil {
			return nil
		}

		errs = errors.Join(errs, fmt.Errorf("run %s: %w", argv[0], err))
	}

	syscall.Sync()

	if err := syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		return errors.Join(errs, fmt.Errorf("power off: %w", err))
	}

	return nil
}
