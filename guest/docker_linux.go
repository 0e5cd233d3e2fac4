// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// Files of dockerd.
const (
	dockerConfig = "/etc/docker/daemon.json"
	dockerPID    = "/run/docker.pid"
)

// reloadDocker sends SIGHUP to Docker, if it runs.
func (s *Service) reloadDocker(context.Context) error {
	pid, err := os.ReadFile(s.path(dockerPID))
	if err != nil {
		return nil //nolint:nilerr // Docker does not run yet and reads the file when it starts
	}

	number, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil || number <= 1 {
		return fmt.Errorf("read %s: %q is not a process ID", dockerPID, bytes.TrimSpace(pid))
	}

	if err := syscall.Kill(number, syscall.SIGHUP); err != nil && err != syscall.ESRCH {
		return err
	}

	return nil
}
