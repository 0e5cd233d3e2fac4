// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/execguest"
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
	config := filepath.Join(root, execguest.Config)
	if _, serr := os.Stat(config); err != nil || serr != nil {
		run.log.printf("guest: no %s, nothing to run", execguest.Config)
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
	program := execguest.Program{
		Path: s.model.Guest.Program, Config: config, Root: root, Console: run.log,
		Running: func(group int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if g.group = group; group != 0 {
				s.groups = append(s.groups, group)
			}
		},
	}
	return program.Run(run.ctx)
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
	return root, execguest.CopyTree(image, root)
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

// cloudInit does what cloud-init would with the attached drive.
func (s *Server) cloudInit(m *machine, run *guestRun, root string) error {
	files, err := s.driveFiles(m)
	if err != nil {
		return err
	}
	return execguest.CloudInit(files, root, run.log.printf)
}

// LeakedProcesses lists process groups of guests that still have live members.
// It is empty after [Server.Close] unless a program escaped.
func (s *Server) LeakedProcesses() []int {
	s.mu.Lock()
	groups := append([]int(nil), s.groups...)
	s.mu.Unlock()
	var out []int
	for _, g := range groups {
		if execguest.Alive(g) {
			out = append(out, g)
		}
	}
	return out
}
