// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/execguest"
)

// execGuest is a guest that is a program on this machine.
type execGuest struct {
	simGuest

	group int // the process group of its running program; guarded by Server.mu
}

func (g *execGuest) execute(run *guestRun) bool {
	if !g.waitForBoot(run) {
		return false
	}
	g.runImage(run)
	return run.ctx.Err() == nil
}

// runImage applies cloud-init and runs the program of the model until the program exits. If there is
// no configuration for the program, the VM stays up and does nothing.
func (g *execGuest) runImage(run *guestRun) {
	s := g.s
	root, err := s.prepareRoot(g.m)
	if s.hasWindows(g.m) {
		if err == nil {
			err = g.runWindows(run, root)
		}
		if err != nil {
			run.log.printf("guest: %s", err)
		}
		run.log.printf("guest: power off")
		return
	}
	if err == nil {
		err = s.applyCloudInit(g.m, run, root)
	}
	if err != nil {
		run.log.printf("cloud-init: %s", err)
	}
	config := filepath.Join(root, execguest.ConfigPath)
	if _, serr := os.Stat(config); err != nil || serr != nil {
		run.log.printf("guest: no %s, nothing to run", execguest.ConfigPath)
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
		ReportGroup: func(group int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if g.group = group; group != 0 {
				s.groups = append(s.groups, group)
			}
		},
	}
	return program.Run(run.ctx)
}

// hasWindows reports whether the VM has an ostype of Windows.
func (s *Server) hasWindows(m *machine) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.HasPrefix(m.conf["ostype"], "w")
}

// runWindows runs a machine with Windows until it is off.
func (g *execGuest) runWindows(run *guestRun, root string) error {
	s := g.s
	if s.model.Guest.Wine == "" {
		return errors.New("start Windows: the model has no guest.wine")
	}
	files, err := s.readCloudInitDrive(g.m)
	if err != nil {
		return fmt.Errorf("read medium: %w", err)
	}
	machine := execguest.Windows{
		Wine: s.model.Guest.Wine, Root: root, Console: run.log,
		ReportGroup: func(group int) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.groups = append(s.groups, group)
		},
	}
	if err := machine.Prepare("cidata", files); err != nil {
		return err
	}
	run.log.printf("guest: starting %s", execguest.WindowsProgram)
	return machine.Run(run.ctx)
}

// pressPowerButton sends SIGTERM to the guest's program, as an init system does when the power
// button is pressed.
func (g *execGuest) pressPowerButton(run *guestRun) time.Duration {
	g.s.mu.Lock()
	defer g.s.mu.Unlock()
	if g.group != 0 && syscall.Kill(-g.group, syscall.SIGTERM) == nil {
		return initStopTimeout
	}
	return g.simGuest.pressPowerButton(run)
}

// prepareRoot returns the VM's root directory, which it creates from the VM's image at the first
// call.
func (s *Server) prepareRoot(m *machine) (string, error) {
	s.mu.Lock()
	if err := s.ensureWorkDir(); err != nil {
		s.mu.Unlock()
		return "", err
	}
	isNew := m.root == ""
	if isNew {
		s.nextRoot++
		m.root = filepath.Join(s.workDir, fmt.Sprintf("vm-%d-%d", m.id, s.nextRoot))
	}
	root, image := m.root, cmp.Or(m.imageDir, s.model.Guest.ImageDir)
	s.mu.Unlock()
	if !isNew {
		return root, nil
	}
	if err := os.Mkdir(root, 0o700); err != nil {
		return "", fmt.Errorf("create root directory: %w", err)
	}
	if image == "" {
		return root, nil
	}
	return root, execguest.CopyTree(image, root)
}

// ensureWorkDir creates the directory for the VMs' files if it does not exist. The caller holds
// s.mu.
func (s *Server) ensureWorkDir() error {
	if s.workDir != "" {
		return nil
	}
	dir, err := os.MkdirTemp(s.model.Guest.WorkDir, "pvesim-")
	if err != nil {
		return fmt.Errorf("create work directory: %w", err)
	}
	if s.workDir, err = filepath.Abs(dir); err != nil { // images refer to each other by path
		return fmt.Errorf("create work directory: %w", err)
	}
	return nil
}

// applyCloudInit applies the attached cloud-init drive to the root directory, as cloud-init would.
func (s *Server) applyCloudInit(m *machine, run *guestRun, root string) error {
	files, err := s.readCloudInitDrive(m)
	if err != nil {
		return err
	}
	return execguest.ApplyCloudInit(files, root, run.log.printf)
}

// LeakedProcesses returns the process groups of guests that still have running members. After
// [Server.Close], the list is empty unless a program has left its process group.
func (s *Server) LeakedProcesses() []int {
	s.mu.Lock()
	groups := append([]int(nil), s.groups...)
	s.mu.Unlock()
	var out []int
	for _, g := range groups {
		if execguest.IsAlive(g) {
			out = append(out, g)
		}
	}
	return out
}
