// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package exe

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const module = "github.com/hyperfleet/hyperfleet/"

// Find gives the path of a program of a Debian package. Where CI is true it must be there;
// elsewhere the test is skipped without it.
func Find(t testing.TB, name, pkg string) string {
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

// Build makes a program of this module, such as cmd/hyperfleet, and gives its path.
func Build(t testing.TB, name string) string {
	t.Helper()

	dir := t.TempDir()
	if err := build(t.Context(), dir, name); err != nil {
		t.Fatal(err)
	}

	return filepath.Join(dir, filepath.Base(name))
}

// With makes programs of this module for all tests of a package: run gets the directory
// that has them, and its result is the exit code. It is for TestMain.
func With(run func(dir string) int, names ...string) int {
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

// build makes programs as `make build` does, once for the tests of all packages: what is
// made is kept in bin/test, where go does not link again what has not changed. The programs
// in dir stay as they are when others are made.
func build(ctx context.Context, dir string, names ...string) error {
	kept, release, err := claim()
	if err != nil {
		return fmt.Errorf("build %s: %w", strings.Join(names, ", "), err)
	}
	defer release()

	args := []string{"build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", kept + "/"}
	for _, name := range names {
		args = append(args, module+name)
	}

	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(names, ", "), err, out)
	}

	for _, name := range names {
		if err := give(filepath.Join(kept, filepath.Base(name)), dir); err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
	}

	return nil
}

// checkout is the folder of the module that the test is of.
func checkout() (string, error) {
	root, err := os.Getwd()

	for err == nil {
		if _, missing := os.Stat(filepath.Join(root, "go.mod")); missing == nil {
			return root, nil
		}

		if filepath.Dir(root) == root {
			err = os.ErrNotExist
		}

		root = filepath.Dir(root)
	}

	return "", fmt.Errorf("find the module: %w", err)
}

// claim gives the folder that programs are kept in, to one at a time.
func claim() (kept string, release func(), err error) {
	root, err := checkout()
	if err != nil {
		return "", nil, err
	}

	kept = filepath.Join(root, "bin", "test")
	if err := os.MkdirAll(kept, 0o750); err != nil {
		return "", nil, fmt.Errorf("make a folder for programs: %w", err)
	}

	lock, err := os.OpenFile(filepath.Join(kept, ".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", nil, fmt.Errorf("lock the folder of programs: %w", err)
	}

	release = func() { _ = lock.Close() } // which ends the lock

	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		release()

		return "", nil, fmt.Errorf("lock the folder of programs: %w", err)
	}

	return kept, release, nil
}

// give puts a program into a folder, under its own name.
func give(program, dir string) error {
	to := filepath.Join(dir, filepath.Base(program))
	if os.Link(program, to) == nil {
		return nil
	}

	// Another file system.
	data, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}

	// A child that is started meanwhile would keep the file open for writing, and nothing
	// could run it ("text file busy").
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()

	if err := os.WriteFile(to, data, 0o755); err != nil {
		return fmt.Errorf("write program: %w", err)
	}

	return nil
}

// generator is the program of netplan's command generate.
const generator = "/usr/libexec/netplan/generate"

// Netplan gives the files, by their names, that netplan makes for systemd-networkd of a
// network-config of version 2.
func Netplan(t testing.TB, config []byte) map[string]string {
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

	// What its command calls, where that is to be had: it takes no Python to start.
	cmd := exec.CommandContext(t.Context(), Find(t, "netplan", "netplan.io"), "generate", "--root-dir", root)
	if _, err := os.Stat(generator); err == nil {
		cmd = exec.CommandContext(t.Context(), generator, "--root-dir", root)
	}

	if said, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("netplan generate: %v\n%s\n%s", err, said, text)
	}

	files, err := filepath.Glob(filepath.Join(root, "run", "systemd", "network", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("files of netplan: %v, %v", files, err)
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
