// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Files of a drive, by the data sources that they belong to.
const (
	fileOpenStack = "openstack/latest/network_data.json"
	fileNoCloud   = "network-config"
)

// Read gives the arguments for what a drive holds: a config drive's network data, else
// NoCloud's. None where there is neither.
func Read(drive fs.FS) (Result, error) {
	for _, source := range []struct {
		file string
		read func([]byte) (Result, error)
	}{{fileOpenStack, OpenStack}, {fileNoCloud, NoCloud}} {
		data, err := readFile(drive, source.file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}

		if err != nil {
			return Result{}, fmt.Errorf("read network data: %w", err)
		}

		r, err := source.read(data)
		if err != nil {
			return Result{}, fmt.Errorf("read network data: %s: %w", source.file, err)
		}

		return r, nil
	}

	return Result{Warnings: []string{"there is neither " + fileOpenStack + " nor " + fileNoCloud}}, nil
}

func readFile(drive fs.FS, name string) ([]byte, error) {
	f, err := drive.Open(name)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the file
	}
	defer func() { _ = f.Close() }()

	data, err := io.ReadAll(io.LimitReader(f, maxData+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}

	return data, nil
}

// ErrNoDrive says that no drive has one of the labels.
var ErrNoDrive = errors.New("no drive has the label config-2 or cidata")

// Find gives the device file of the config drive below root: the one with the label
// config-2, else that with cidata.
func Find(root string) (string, error) {
	dir := filepath.Join(root, "dev", "disk", "by-label")

	for _, label := range []string{"config-2", "cidata"} {
		device := filepath.Join(dir, label)
		if _, err := os.Stat(device); err == nil {
			return device, nil
		} else if !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("find config drive: %w", err)
		}
	}

	return "", fmt.Errorf("find config drive: %w (%s)", ErrNoDrive, dir)
}

// Mount mounts a device on a directory and returns what takes it away again.
type Mount func(device, dir string) (unmount func() error, err error)

// MountReadOnly mounts an ISO 9660 image. A drive that is not ready yet gets two seconds.
func MountReadOnly(device, dir string) (func() error, error) {
	const flags = syscall.MS_RDONLY | syscall.MS_NOSUID | syscall.MS_NODEV | syscall.MS_NOEXEC

	var err error

	for attempt := range 3 {
		if attempt > 0 {
			time.Sleep(time.Second)
		}

		if err = syscall.Mount(device, dir, "iso9660", flags, ""); err == nil {
			return func() error { return syscall.Unmount(dir, 0) }, nil
		}
	}

	return nil, fmt.Errorf("mount %s: %w", device, err)
}

// Command is the subcommand kargs.
type Command struct {
	// Root is put before the paths of devices and of the kernel's command line.
	Root           string
	Mount          Mount
	Stdout, Stderr io.Writer
}

// Run prints the arguments on one line. Exit codes are 0, 1 for what cannot be read, 2
// for wrong arguments.
func (c Command) Run(args []string) int {
	flags := flag.NewFlagSet("bootstrap-service kargs", flag.ContinueOnError)
	flags.SetOutput(c.Stderr)
	flags.Usage = func() {
		_, _ = fmt.Fprintln(c.Stderr, "usage: bootstrap-service kargs [--default-value ARGUMENTS] "+
			"[--provider kubevirt | [--config-drive] DIR]")
		flags.PrintDefaults()
	}
	dir := flags.String("config-drive", "", "directory with the content of a config drive; else the drive is looked for")
	provider := flags.String("provider", "kubevirt", "where the machine runs; only kubevirt has drives that are read")
	otherwise := flags.String("default-value", "", "printed where the drive says nothing of the network")

	if err := flags.Parse(args); err != nil {
		return 2
	}

	if *dir == "" && flags.NArg() == 1 {
		*dir = flags.Arg(0)
	} else if flags.NArg() > 0 {
		return c.fail(2, fmt.Errorf("unknown argument %q: see --help", flags.Arg(0)))
	}

	if *provider != "kubevirt" {
		return c.fail(2, fmt.Errorf("provider %q: must be kubevirt", *provider))
	}

	if *dir == "" && c.decided() {
		c.say("the kernel's command line has network arguments: they win")

		return 0
	}

	r, err := c.read(*dir)
	if err != nil {
		return c.fail(1, err)
	}

	for _, w := range r.Warnings {
		c.say(w)
	}

	out := r.String()
	if out == "" {
		out = *otherwise
	}

	if out == "" {
		return 0
	}

	if _, err := fmt.Fprintln(c.Stdout, out); err != nil {
		return c.fail(1, err)
	}

	return 0
}

func (c Command) say(what string) {
	_, _ = fmt.Fprintln(c.Stderr, "bootstrap-service kargs: "+what)
}

func (c Command) fail(code int, err error) int {
	c.say(err.Error())

	return code
}

// decided says whether the kernel was given the network: that wins. Afterburn looks for
// ip= alone as well.
func (c Command) decided() bool {
	line, err := os.ReadFile(filepath.Join(c.Root, "proc", "cmdline"))
	if err != nil {
		return false
	}

	for arg := range strings.FieldsSeq(string(line)) {
		if strings.HasPrefix(arg, "ip=") {
			return true
		}
	}

	return false
}

// read reads a directory, or the drive if there is none.
func (c Command) read(dir string) (r Result, err error) {
	if dir != "" {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return Result{}, fmt.Errorf("read config drive: %s: is not a directory", dir)
		}

		return Read(os.DirFS(dir))
	}

	device, err := Find(c.Root)
	if err != nil {
		return Result{}, err
	}

	dir, err = os.MkdirTemp("", "config-drive-")
	if err != nil {
		return Result{}, fmt.Errorf("mount config drive: %w", err)
	}
	defer func() { _ = os.Remove(dir) }()

	unmount, err := c.Mount(device, dir)
	if err != nil {
		return Result{}, fmt.Errorf("read config drive: %w", err)
	}

	defer func() {
		if e := unmount(); e != nil && err == nil {
			err = fmt.Errorf("unmount config drive: %w", e)
		}
	}()

	return Read(os.DirFS(dir))
}
