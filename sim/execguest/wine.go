// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package execguest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// WindowsProgram is the path of the bootstrap service in an image with Windows.
const WindowsProgram = `C:\Program Files\HyperFleet\bootstrap-service.exe`

// powerOffTimeout limits the end of Wine's processes after the end of the machine.
const powerOffTimeout = time.Minute

// Windows is a machine with Windows, which runs under Wine. Windows has no cloud-init, so the program finds the machine's
// medium itself.
type Windows struct {
	// Wine is the path of Wine. Its wineserver is in the same folder.
	Wine string
	// Root is the machine's disk: a Wine prefix, in which WindowsProgram is installed.
	Root string
	// Console receives what the program prints.
	Console io.Writer
	// ReportGroup is called with the process group of the program after the start.
	ReportGroup func(group int)
}

// Prepare makes the copy of an image that CopyTree has created a machine of its own: it copies the registry, which
// Windows changes, and inserts a medium with the files.
func (w Windows) Prepare(label string, files map[string][]byte) error {
	for _, name := range []string{"system.reg", "user.reg", "userdef.reg"} {
		if err := replaceLink(filepath.Join(w.Root, name)); err != nil {
			return fmt.Errorf("copy registry: %w", err)
		}
	}
	medium := filepath.Join(w.Root, "medium")
	if err := os.MkdirAll(medium, 0o700); err != nil {
		return fmt.Errorf("insert medium: %w", err)
	}
	// Wine reads the label of a drive that is a folder from this file.
	if err := os.WriteFile(filepath.Join(medium, ".windows-label"), []byte(label+"\n"), 0o600); err != nil {
		return fmt.Errorf("insert medium: %w", err)
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(medium, filepath.Base(name)), data, 0o600); err != nil {
			return fmt.Errorf("insert medium: %w", err)
		}
	}
	drive := filepath.Join(w.Root, "dosdevices", "e:")
	if err := os.Symlink(medium, drive); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("insert medium: %w", err)
	}
	return nil
}

// replaceLink replaces a symbolic link with a copy of its target.
func replaceLink(name string) error {
	target, err := os.Readlink(name)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.EINVAL) { // no file, or no link
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.Remove(name); err != nil {
		return err
	}
	return copyFile(target, name, 0o600)
}

// Run runs the program until it ends or powers the machine off, or until ctx ends, which stands for the machine's power.
// Run kills all processes that are left.
func (w Windows) Run(ctx context.Context) error {
	cmd := exec.CommandContext(ctx, w.Wine, WindowsProgram, "--root", `C:\`) // #nosec G204 -- the test's own
	cmd.Env = w.environment()
	cmd.Dir = w.Root
	cmd.Stdout, cmd.Stderr = w.Console, w.Console
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return errors.Join(w.stop(), syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)) }
	cmd.WaitDelay = pipeWait
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start Wine: %w", err)
	}
	w.ReportGroup(cmd.Process.Pid)
	err := cmd.Wait()
	return errors.Join(err, w.stop())
}

func (w Windows) environment() []string {
	return []string{"WINEPREFIX=" + w.Root, "WINEARCH=win64", "WINEDEBUG=-all", "DISPLAY=", "HOME=" + w.Root, "PATH=/usr/bin:/bin"}
}

// stop kills all processes of the machine, and waits for their end.
func (w Windows) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), powerOffTimeout)
	defer cancel()
	for _, option := range []string{"-k", "-w"} {
		cmd := exec.CommandContext(ctx, filepath.Join(filepath.Dir(w.Wine), "wineserver"), option) // #nosec G204 -- the test's own
		cmd.Env = w.environment()
		var exit *exec.ExitError
		if err := cmd.Run(); err != nil && (!errors.As(err, &exit) || ctx.Err() != nil) { // no server runs any more
			return fmt.Errorf("stop Wine: %w", err)
		}
	}
	return nil
}
