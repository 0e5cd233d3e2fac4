// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

const (
	// dockerConfig is the file that dockerd reads if its data-root is the default one
	// (https://docs.docker.com/engine/daemon/#configuration-file).
	dockerConfig = `/ProgramData/docker/config/daemon.json`
	// dockerProgram finds the processes of dockerd, because dockerd writes no PID file if it is a service.
	dockerProgram = "dockerd.exe"
	// dockerEventPrefix and then the PID of dockerd form the name of the event that makes dockerd reload its configuration.
	dockerEventPrefix = `Global\docker-daemon-config-`
)

// Docker takes seconds to start. Until it has, it does not have the event.
const (
	dockerTimeout  = 20 * time.Second
	dockerInterval = 200 * time.Millisecond
)

// reloadDocker sets the event that makes Docker reload its configuration, if Docker runs.
func (s *Service) reloadDocker(ctx context.Context) error {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPPROCESS, 0)
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	defer windows.CloseHandle(snapshot) //nolint:errcheck // a handle

	entry := windows.ProcessEntry32{Size: uint32(unsafe.Sizeof(windows.ProcessEntry32{}))}

	for err = windows.Process32First(snapshot, &entry); err == nil; err = windows.Process32Next(snapshot, &entry) {
		if strings.EqualFold(windows.UTF16ToString(entry.ExeFile[:]), dockerProgram) {
			return s.setEvent(ctx, dockerEventPrefix+strconv.FormatUint(uint64(entry.ProcessID), 10))
		}
	}

	if !errors.Is(err, windows.ERROR_NO_MORE_FILES) {
		return fmt.Errorf("list processes: %w", err)
	}

	return nil
}

// setEvent sets an event of another process. It waits until the process has created the event.
func (s *Service) setEvent(ctx context.Context, name string) error {
	text, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return err
	}

	for deadline := s.clock.Now().Add(dockerTimeout); ; {
		event, err := windows.OpenEvent(windows.EVENT_MODIFY_STATE, false, text)
		if err == nil {
			return errors.Join(windows.SetEvent(event), windows.CloseHandle(event))
		}

		if !errors.Is(err, windows.ERROR_FILE_NOT_FOUND) || s.clock.Now().After(deadline) {
			return fmt.Errorf("open event %s: %w", name, err)
		}

		if err := sleep(ctx, s.clock, dockerInterval); err != nil {
			return err
		}
	}
}
