// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigs.k8s.io/yaml"
)

const (
	runnerConfig = "etc/hyperfleet/runner-config.json"
	// copyUpTo is the size up to which files of an image are copied; larger
	// ones are linked to.
	copyUpTo = 1 << 20
	// pipeWait is how long output is awaited after the program has gone.
	pipeWait = 2 * time.Second
)

// execGuest is a guest that is a program of this machine.
type execGuest struct {
	simGuest

	group int // process group of its program while it runs; guarded by Server.mu
}

func (g *execGuest) live(run *guestRun) bool {
	if !g.boot(run) {
		return false
	}
	g.play(run)
	return run.ctx.Err() == nil
}

// play does what a guest does: cloud-init, then the program of the model, until
// it exits. Without a configuration to run with, the VM stays up idle.
func (g *execGuest) play(run *guestRun) {
	s := g.s
	root, err := s.guestRoot(g.m)
	if err == nil {
		err = s.cloudInit(g.m, run, root)
	}
	if err != nil {
		run.log.printf("cloud-init: %s", err)
	}
	config := filepath.Join(root, runnerConfig)
	if _, serr := os.Stat(config); err != nil || serr != nil {
		run.log.printf("guest: no %s, nothing to run", runnerConfig)
		<-run.ctx.Done()
		return
	}
	run.log.printf("guest: starting %s", filepath.Base(s.model.Guest.Program))
	err = g.runProgram(run, config, root)
	if err != nil {
		run.log.printf("guest: %s", err)
	}
	run.log.printf("guest: power off")
}

func (g *execGuest) runProgram(run *guestRun, config, root string) error {
	s := g.s
	program := s.model.Guest.Program
	cmd := exec.CommandContext(run.ctx, program, "--config", config, "--root", root) // #nosec G204 -- the model's own
	cmd.Env = []string{}
	cmd.Dir = root
	cmd.Stdout, cmd.Stderr = run.log, run.log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeWait
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start program: %w", err)
	}
	s.mu.Lock()
	s.groups = append(s.groups, cmd.Process.Pid)
	g.group = cmd.Process.Pid
	s.mu.Unlock()
	err := cmd.Wait()
	s.mu.Lock()
	g.group = 0
	s.mu.Unlock()
	// Power-off ends whatever the program left running.
	if kerr := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL); kerr != nil && !errors.Is(kerr, syscall.ESRCH) {
		run.log.printf("guest: end processes: %s", kerr)
	}
	return err
}

// press asks the guest's program to end, as an init system does when the power
// button is pressed.
func (g *execGuest) press(run *guestRun) time.Duration {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if g.group != 0 && syscall.Kill(-g.group, syscall.SIGTERM) == nil {
		return initPatience
	}
	return g.simGuest.press(run)
}

// guestRoot makes the VM's root directory, once per VM, out of its image.
func (s *Server) guestRoot(m *machine) (string, error) {
	s.mu.Lock()
	if err := s.makeWorkDir(); err != nil {
		s.mu.Unlock()
		return "", err
	}
	fresh := m.root == ""
	if fresh {
		s.nextRoot++
		m.root = filepath.Join(s.workDir, fmt.Sprintf("vm-%d-%d", m.id, s.nextRoot))
	}
	root, image := m.root, cmpOr(m.imageDir, s.model.Guest.ImageDir)
	s.mu.Unlock()
	if !fresh {
		return root, nil
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		return "", fmt.Errorf("make root directory: %w", err)
	}
	if image == "" {
		return root, nil
	}
	return root, copyTree(image, root)
}

// makeWorkDir makes the directory for what VMs need, once; s.mu is held.
func (s *Server) makeWorkDir() error {
	if s.workDir != "" {
		return nil
	}
	dir, err := os.MkdirTemp(s.model.Guest.WorkDir, "pvesim-")
	if err != nil {
		return fmt.Errorf("make work directory: %w", err)
	}
	if s.workDir, err = filepath.Abs(dir); err != nil { // images name each other by path
		return fmt.Errorf("make work directory: %w", err)
	}
	return nil
}

// copyTree copies an image: directories and small files are the VM's own,
// large files are links to the image's.
func copyTree(from, to string) error {
	from, err := filepath.Abs(from)
	if err != nil {
		return fmt.Errorf("find image: %w", err)
	}
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		dest := filepath.Join(to, rel)
		info, err := d.Info()
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.MkdirAll(dest, info.Mode().Perm()|0o700)
		case d.Type()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(target, dest)
		case info.Size() > copyUpTo:
			return os.Symlink(path, dest)
		default:
			return copyFile(path, dest, info.Mode().Perm())
		}
	})
}

func copyFile(from, to string, mode fs.FileMode) error {
	in, err := os.Open(from) // #nosec G304 -- below the image the model names
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, mode|0o200) // #nosec G304 -- below the VM's root
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// cloudInit does what cloud-init would with the attached drive. Scripts are
// not run: they would run on this machine, not in a VM.
func (s *Server) cloudInit(m *machine, run *guestRun, root string) error {
	files, err := s.driveFiles(m)
	if err != nil {
		return err
	}
	if files == nil {
		return errors.New("no datasource found")
	}
	cc, err := parseUserData(files["user-data"])
	if err != nil {
		return err
	}
	for _, kind := range cc.skipped {
		run.log.printf("cloud-init: not run here: %s", kind)
	}
	inside, err := os.OpenRoot(root)
	if err != nil {
		return fmt.Errorf("open root directory: %w", err)
	}
	defer func() { _ = inside.Close() }()
	if name := cmpOr(metaHostname(files["meta-data"]), cc.hostname); name != "" {
		cc.files = append([]guestFile{{path: "/etc/hostname", data: []byte(name + "\n"), mode: 0o644}}, cc.files...)
	}
	for _, f := range cc.files {
		if err := f.write(inside); err != nil {
			return fmt.Errorf("write_files %s: %w", f.path, err)
		}
	}
	run.log.printf("cloud-init: wrote %d files", len(cc.files))
	return nil
}

func metaHostname(data []byte) string {
	var meta map[string]any
	if yaml.Unmarshal(data, &meta) != nil {
		return ""
	}
	for _, k := range []string{"local-hostname", "hostname"} {
		if v, ok := meta[k].(string); ok {
			return v
		}
	}
	return ""
}

// write puts a file below the root; links out of it are refused by os.Root.
func (f guestFile) write(root *os.Root) error {
	name := strings.TrimPrefix(filepath.Clean("/"+f.path), "/")
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	flags := os.O_CREATE | os.O_WRONLY | os.O_TRUNC
	if f.add {
		flags = os.O_CREATE | os.O_WRONLY | os.O_APPEND
	}
	out, err := root.OpenFile(name, flags, fs.FileMode(f.mode).Perm())
	if err != nil {
		return err
	}
	_, err = out.Write(f.data)
	return errors.Join(err, out.Chmod(fs.FileMode(f.mode).Perm()), out.Close())
}

// LeakedProcesses lists process groups of guests that still have live members.
// It is empty after [Server.Close] unless a program escaped.
func (s *Server) LeakedProcesses() []int {
	s.mu.Lock()
	groups := append([]int(nil), s.groups...)
	s.mu.Unlock()
	var out []int
	for _, g := range groups {
		if groupAlive(g) {
			out = append(out, g)
		}
	}
	return out
}

// groupAlive looks for a member that is not a zombie.
func groupAlive(group int) bool {
	if syscall.Kill(-group, 0) != nil {
		return false
	}
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil || len(stats) == 0 {
		return true
	}
	for _, name := range stats {
		raw, err := os.ReadFile(name) // #nosec G304 -- /proc
		if err != nil {
			continue
		}
		_, rest, ok := strings.Cut(string(raw), ") ") // pid (comm) state ppid pgrp
		fields := strings.Fields(rest)
		if ok && len(fields) > 2 && fields[2] == strconv.Itoa(group) && fields[0] != "Z" && fields[0] != "X" {
			return true
		}
	}
	return false
}
