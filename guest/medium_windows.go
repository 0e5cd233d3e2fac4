// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf16"

	"golang.org/x/sys/windows"
)

const (
	// volumeLabel is the label of the medium of cloud-init's NoCloud data source.
	volumeLabel = "cidata"
	// mediumTimeout is how long the service waits for the medium or for cloudbase-init, and mediumInterval is how often it
	// looks.
	mediumTimeout  = 10 * time.Minute
	mediumInterval = 2 * time.Second
)

// provideConfig waits for the end of Windows' setup, and writes the configuration from the machine's medium to the file, if
// cloudbase-init has not written it.
func provideConfig(file string, clock Clock, log *slog.Logger) error {
	waitForSetup(clock, log)

	var err error

	for deadline := clock.Now().Add(mediumTimeout); ; {
		if isFile(file) {
			return nil
		}

		if err = copyConfig(file); err == nil || !errors.Is(err, errNoMedium) {
			return err
		}

		if clock.Now().After(deadline) {
			return fmt.Errorf("find the machine's configuration within %s: %w", mediumTimeout, err)
		}

		<-clock.After(mediumInterval)
	}
}

var errNoMedium = errors.New("no volume has the label " + volumeLabel)

func copyConfig(file string) error {
	drive, err := findVolume(volumeLabel)
	if err != nil {
		return err
	}

	data, err := os.ReadFile(drive + "user-data") //nolint:gosec // the medium of the machine
	if err != nil {
		return fmt.Errorf("read medium: %w", err)
	}

	config, err := findMachineConfig(data)
	if err != nil {
		return fmt.Errorf("read medium %s: %w", drive, err)
	}

	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("create folder of the configuration: %w", err)
	}

	return os.WriteFile(file, config, 0o600)
}

// findVolume returns the root of the drive whose volume has the label, such as D:\.
func findVolume(label string) (string, error) {
	buffer := make([]uint16, 512)

	n, err := windows.GetLogicalDriveStrings(uint32(len(buffer)), &buffer[0]) //nolint:gosec // a constant
	if err != nil {
		return "", fmt.Errorf("list drives: %w", err)
	}

	for _, root := range strings.Split(strings.TrimRight(string(utf16.Decode(buffer[:n])), "\x00"), "\x00") {
		name, err := windows.UTF16PtrFromString(root)
		if err != nil {
			continue
		}

		volume := make([]uint16, windows.MAX_PATH+1)
		// An empty drive has no volume.
		if err := windows.GetVolumeInformation(name, &volume[0], uint32(len(volume)), nil, nil, nil, nil, 0); err != nil { //nolint:gosec // a constant
			continue
		}

		if strings.EqualFold(windows.UTF16ToString(volume), label) {
			return root, nil
		}
	}

	return "", errNoMedium
}
