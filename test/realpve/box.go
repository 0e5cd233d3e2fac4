// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// missing says why there is no Proxmox VE here: tests are skipped.
type missing string

func (m missing) Error() string { return string(m) }

// box is a Proxmox VE that the kit runs.
type box struct {
	program, dir string
	// temporary: the folder goes with the box.
	temporary bool
	// env is what the kit tells of it.
	env map[string]string

	// credentials of the operator's account, once it is made, and the grants that it has.
	credentials hypervisor.Credentials
	grants      Grants
}

// bringUp builds and starts a box that ends with this process, in a folder that is kept, or a
// temporary one where that is empty; args are further ones for the kit.
func bringUp(ctx context.Context, folder string, args ...string) (*box, error) {
	b, err := newBox(ctx, folder)
	if err != nil {
		return nil, err
	}

	if _, err := b.kit(ctx, "build"); err != nil {
		return nil, errors.Join(packagesMissing(err), b.remove())
	}

	lines, err := b.kit(ctx, "up", append([]string{"--port", "0", "--until", strconv.Itoa(os.Getpid())}, args...)...)
	if err != nil {
		return nil, errors.Join(err, b.remove())
	}

	b.env = map[string]string{}

	for line := range strings.Lines(lines) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			b.env[key] = value
		}
	}

	return b, nil
}

func newBox(ctx context.Context, folder string) (*box, error) {
	program, err := findKit()
	if err != nil {
		return nil, err
	}

	if os.Getuid() != 0 {
		return nil, missing("the kit of Proxmox VE makes namespaces and mounts: run the tests as root")
	}

	if err := exec.CommandContext(ctx, "unshare", "-m", "true").Run(); err != nil {
		return nil, missing("the kit of Proxmox VE makes namespaces, which needs CAP_SYS_ADMIN (docker run --privileged): " +
			err.Error())
	}

	if _, err := os.Stat("/dev/fuse"); err != nil {
		return nil, missing("the kit of Proxmox VE mounts /etc/pve, which needs /dev/fuse (docker run --privileged)")
	}

	b := &box{program: program, dir: folder}
	if folder != "" {
		return b, nil
	}

	b.temporary = true
	b.dir, err = os.MkdirTemp("", "hf-realpve-")

	return b, err
}

// findKit finds the kit's program.
func findKit() (string, error) {
	dir := os.Getenv("REALPVE")
	if dir == "" {
		root, err := checkout()
		if err != nil {
			return "", err
		}

		dir = filepath.Join(root, "..", "shared", "realpve")
	}

	program := filepath.Join(dir, "realpve")
	if _, err := os.Stat(program); err != nil {
		return "", missing("no Proxmox VE: set PVE_ENDPOINT (go doc ./test/realpve), or REALPVE to the folder of the kit; " +
			program + " is not there")
	}

	return program, nil
}

// packagesMissing makes the lack of Debian packages a reason to skip; that compiling failed is
// none.
func packagesMissing(err error) error {
	if _, reason, found := strings.Cut(err.Error(), "realpve: apt-get install failed"); found {
		return missing("the kit's Debian packages can't be installed" + reason + ": install those of its packages.txt")
	}

	return err
}

// kit runs a command of the kit on the box.
func (b *box) kit(ctx context.Context, command string, args ...string) (string, error) {
	return execute(ctx, nil, b.program, append([]string{command, b.dir}, args...)...)
}

// execute runs a program of the kit.
func execute(ctx context.Context, env []string, program string, args ...string) (string, error) {
	var out, text bytes.Buffer

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &text
	// The kit calls make too, and not with the flags of the make that runs the tests.
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "MAKE") || strings.HasPrefix(v, "MFLAGS=")
	}), env...)

	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf(
			"run %s %.200s: %w: %s",
			filepath.Base(program),
			strings.Join(args, " "),
			err,
			strings.TrimSpace(text.String()),
		)
	}

	return out.String(), nil
}

// nodes are the names of its nodes.
func (b *box) nodes() []string { return strings.Split(b.env["REALPVE_NODES"], ",") }

// shell runs commands inside the box's node, as an administrator types them, and ends with
// the first that fails.
func (b *box) shell(ctx context.Context, script string) (string, error) {
	return b.kit(ctx, "exec", "bash", "-euc", script)
}

// remove ends the box, and its folder with it where that is temporary.
func (b *box) remove() error {
	_, err := b.kit(context.Background(), "down")
	if b.temporary {
		err = errors.Join(err, os.RemoveAll(b.dir))
	}

	return err
}

// checkout is the folder of the module that the test is of.
func checkout() (string, error) {
	file, err := exec.CommandContext(context.Background(), "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}

	return filepath.Dir(strings.TrimSpace(string(file))), nil
}
