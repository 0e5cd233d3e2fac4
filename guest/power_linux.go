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

// PowerOff ends the machine it runs in: by systemd, else by the poweroff program, else
// by the kernel itself.
func PowerOff(ctx context.Context) error {
	var tried error

	for _, argv := range [][]string{{"systemctl", "poweroff", "--no-block"}, {"poweroff"}} {
		err := exec.CommandContext(ctx, argv[0], argv[1:]...).Run() //nolint:gosec // fixed words
		if err == nil {
			return nil
		}

		tried = errors.Join(tried, fmt.Errorf("run %s: %w", argv[0], err))
	}

	syscall.Sync()

	if err := syscall.Reboot(syscall.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		return errors.Join(tried, fmt.Errorf("power off: %w", err))
	}

	return nil
}
