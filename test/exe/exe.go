// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package exe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const module = "github.com/hyperfleet/hyperfleet/"

// FindProgram returns the path of a program of a Debian package. If the program is missing, the test fails if
// the environment variable CI is "true", and is skipped otherwise.
func FindProgram(t testing.TB, name, pkg string) string {
	t.Helper()

	path, err := exec.LookPath(name)
	if err == nil {
		return path
	}

	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is missing: install the Debian package %s", name, pkg)
	}

	t.Skipf("%s is missing (Debian package %s)", name, pkg)

	return ""
}

// Build builds a program of this module, for example cmd/hyperfleet, and returns its path.
func Build(t testing.TB, name string) string {
	t.Helper()

	dir := t.TempDir()
	if err := build(t.Context(), dir, name); err != nil {
		t.Fatal(err)
	}

	return filepath.Join(dir, filepath.Base(name))
}

// RunWith builds programs of this module for all tests of a package, calls run with the directory of the
// programs, and returns the exit code of run. Use it in TestMain.
func RunWith(run func(dir string) int, names ...string) int {
	dir, err := os.MkdirTemp("", "hyperfleet-test-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()

	if err := build(context.Background(), dir, names...); err != nil {
		fmt.Fprintln(os.Stderr, err)

		return 1
	}

	return run(dir)
}

// build builds programs as `make build` does, and links or copies them into dir. It builds in bin/test, which
// the tests of all packages share, so that go does not link unchanged programs again. Later builds do not
// change the programs in dir.
func build(ctx context.Context, dir string, names ...string) error {
	binDir, release, err := lockBinDir()
	if err != nil {
		return fmt.Errorf("build %s: %w", strings.Join(names, ", "), err)
	}
	defer release()

	args := []string{"build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", binDir + "/"}
	for _, name := range names {
		args = append(args, module+name)
	}

	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(names, ", "), err, out)
	}

	for _, name := range names {
		if err := installProgram(filepath.Join(binDir, filepath.Base(name)), dir); err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
	}

	return nil
}

// lockBinDir locks the directory for built programs, and returns the directory and a function that unlocks
// it. It waits until no other process holds the lock.
func lockBinDir() (binDir string, release func(), err error) {
	root, err := procrun.FindModuleRoot()
	if err != nil {
		return "", nil, err
	}

	binDir = filepath.Join(root, "bin", "test")

	// Use system calls. go takes the files and folders that package os opens for inputs of the test, and runs the test
	// again after another test has built a program here.
	for _, dir := range []string{filepath.Dir(binDir), binDir} {
		if err := syscall.Mkdir(dir, 0o750); err != nil && !errors.Is(err, syscall.EEXIST) {
			return "", nil, fmt.Errorf("create the directory for programs: %w", err)
		}
	}

	lock, err := syscall.Open(filepath.Join(binDir, ".lock"), syscall.O_CREAT|syscall.O_RDWR|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("lock the directory for programs: %w", err)
	}

	release = func() { _ = syscall.Close(lock) } // closing the file also releases the lock

	if err := syscall.Flock(lock, syscall.LOCK_EX); err != nil {
		release()

		return "", nil, fmt.Errorf("lock the directory for programs: %w", err)
	}

	return binDir, release, nil
}

// installProgram links a program into a directory under the same name. If it cannot link, it copies.
func installProgram(program, dir string) error {
	target := filepath.Join(dir, filepath.Base(program))
	if os.Link(program, target) == nil {
		return nil
	}

	// The directory is on another file system.
	data, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}

	// Prevent other goroutines from starting child processes while the file is open for writing. A child would
	// inherit the open file, and the program could not be run ("text file busy").
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	if err := os.WriteFile(target, data, 0o755); err != nil {
		return fmt.Errorf("write program: %w", err)
	}

	return nil
}

// netplanGenerator is the program that the command "netplan generate" runs.
const netplanGenerator = "/usr/libexec/netplan/generate"

// RunNetplan converts a network-config of version 2 with netplan, and returns the contents of the files for
// systemd-networkd by file name.
func RunNetplan(t testing.TB, config []byte) map[string]string {
	t.Helper()

	root := t.TempDir()
	dir := filepath.Join(root, "etc", "netplan")

	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}

	text := "network:\n  " + strings.ReplaceAll(strings.TrimSpace(string(config)), "\n", "\n  ") + "\n"
	if err := os.WriteFile(filepath.Join(dir, "50-cloud-init.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	// Call the generator directly if it exists, because it starts faster than netplan's command, which needs
	// Python.
	cmd := exec.CommandContext(t.Context(), FindProgram(t, "netplan", "netplan.io"), "generate", "--root-dir", root)
	if _, err := os.Stat(netplanGenerator); err == nil {
		cmd = exec.CommandContext(t.Context(), netplanGenerator, "--root-dir", root)
	}

	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("netplan generate: %v\n%s\n%s", err, output, text)
	}

	files, err := filepath.Glob(filepath.Join(root, "run", "systemd", "network", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("find the files of netplan: %v, %v", files, err)
	}

	out := map[string]string{}

	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		out[filepath.Base(file)] = string(data)
	}

	return out
}
