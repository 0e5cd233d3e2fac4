// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/windows"
)

// chown does nothing: the runner has the account of the service.
func (*account) chown(string) error { return nil }

// applyTo makes the command run in its own process group.
func (*account) applyTo(cmd *exec.Cmd) { setOwnGroup(cmd) }

// setOwnGroup makes the command run in its own process group, so that a console event reaches the command and its
// children alone.
func setOwnGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{CreationFlags: windows.CREATE_NEW_PROCESS_GROUP}
}

// quitSignal cancels the job of gitlab-runner, because Windows has no signal that asks it to stop after its job.
const quitSignal = syscall.SIGINT

// breakInterval is the time between two break events. A Go program misses an event that arrives before it has handled
// the one before it.
const breakInterval = 500 * time.Millisecond

// jobObjects holds the job object of each started command. All processes that a command starts belong to its job object, and
// Windows kills them when the handle is closed, also when the service itself ends.
var jobObjects sync.Map // map[*exec.Cmd]windows.Handle

// startGroup starts the command in a job object of its own. The command is suspended until it belongs to the job object,
// because a process that it starts before that would outlive it.
func startGroup(cmd *exec.Cmd) error {
	job, err := newJobObject()
	if err != nil {
		return err
	}

	cmd.SysProcAttr.CreationFlags |= windows.CREATE_SUSPENDED
	cmd.SysProcAttr.CmdLine = scriptCommandLine(cmd)

	if err := cmd.Start(); err != nil {
		return errors.Join(err, windows.CloseHandle(job))
	}

	pid := uint32(cmd.Process.Pid) //nolint:gosec // a PID

	err = assignToJobObject(job, pid)
	if err == nil {
		err = resumeProcess(pid)
	}

	if err != nil {
		return errors.Join(fmt.Errorf("start process in job object: %w", err), cmd.Process.Kill(), windows.CloseHandle(job))
	}

	jobObjects.Store(cmd, job)

	return nil
}

// scriptCommandLine returns the command line of a script, and "" for another program, whose command line os/exec writes.
// It always quotes the path, because cmd.exe would end an unquoted one at characters such as ',', ';', '=' and '&'.
func scriptCommandLine(cmd *exec.Cmd) string {
	if extension := strings.ToLower(filepath.Ext(cmd.Path)); extension != ".cmd" && extension != ".bat" {
		return ""
	}

	line := `"` + cmd.Path + `"`
	for _, arg := range cmd.Args[1:] {
		line += " " + syscall.EscapeArg(arg)
	}

	return line
}

// newJobObject returns a job object that kills its processes when its last handle is closed.
func newJobObject() (windows.Handle, error) {
	job, err := windows.CreateJobObject(nil, nil)
	if err != nil {
		return 0, fmt.Errorf("create job object: %w", err)
	}

	limits := windows.JOBOBJECT_EXTENDED_LIMIT_INFORMATION{
		BasicLimitInformation: windows.JOBOBJECT_BASIC_LIMIT_INFORMATION{LimitFlags: windows.JOB_OBJECT_LIMIT_KILL_ON_JOB_CLOSE},
	}

	_, err = windows.SetInformationJobObject(job, windows.JobObjectExtendedLimitInformation,
		uintptr(unsafe.Pointer(&limits)), uint32(unsafe.Sizeof(limits))) //nolint:gosec // the call takes a pointer
	if err != nil {
		return 0, errors.Join(fmt.Errorf("limit job object: %w", err), windows.CloseHandle(job))
	}

	return job, nil
}

// assignToJobObject adds a process to a job object.
func assignToJobObject(job windows.Handle, pid uint32) error {
	process, err := windows.OpenProcess(windows.PROCESS_SET_QUOTA|windows.PROCESS_TERMINATE, false, pid)
	if err != nil {
		return err
	}

	return errors.Join(windows.AssignProcessToJobObject(job, process), windows.CloseHandle(process))
}

// resumeProcess resumes the threads of a suspended process.
func resumeProcess(pid uint32) error {
	snapshot, err := windows.CreateToolhelp32Snapshot(windows.TH32CS_SNAPTHREAD, 0)
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	defer windows.CloseHandle(snapshot) //nolint:errcheck // a handle

	entry := windows.ThreadEntry32{Size: uint32(unsafe.Sizeof(windows.ThreadEntry32{}))}
	isResumed := false

	for err = windows.Thread32First(snapshot, &entry); err == nil; err = windows.Thread32Next(snapshot, &entry) {
		if entry.OwnerProcessID != pid {
			continue
		}

		thread, err := windows.OpenThread(windows.THREAD_SUSPEND_RESUME, false, entry.ThreadID)
		if err != nil {
			return fmt.Errorf("open thread: %w", err)
		}

		_, err = windows.ResumeThread(thread)
		if err = errors.Join(err, windows.CloseHandle(thread)); err != nil {
			return fmt.Errorf("resume thread: %w", err)
		}

		isResumed = true
	}

	switch {
	case !errors.Is(err, windows.ERROR_NO_MORE_FILES):
		return fmt.Errorf("list threads: %w", err)
	case !isResumed: // otherwise the process would be suspended until a timeout kills it
		return errors.New("resume process: it has no threads")
	}

	return nil
}

// signalGroup kills all processes of the command for killSignal, and asks them to end for all other signals, with a
// break event. SIGQUIT, at which buildkite-agent cancels its job, is a second break event. signalGroup does nothing if
// the command has not started.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) error {
	if cmd.Process == nil {
		return nil
	}

	if sig != killSignal {
		group := uint32(cmd.Process.Pid) //nolint:gosec // a PID

		err := sendBreak(group)
		if err == nil && sig == syscall.SIGQUIT {
			time.Sleep(breakInterval)
			err = sendBreak(group)
		}

		return err
	}

	job, ok := jobObjects.LoadAndDelete(cmd)
	if !ok {
		return cmd.Process.Kill()
	}

	handle, _ := job.(windows.Handle)

	return errors.Join(windows.TerminateJobObject(handle, 1), windows.CloseHandle(handle))
}

var (
	kernel32      = windows.NewLazySystemDLL("kernel32.dll")
	attachConsole = kernel32.NewProc("AttachConsole")
	freeConsole   = kernel32.NewProc("FreeConsole")
	consoleLock   sync.Mutex
)

// sendBreak sends a break event to a process group. A service has no console, so it attaches to the console of the
// group for the call.
func sendBreak(group uint32) error {
	// While the service is attached to the console of one group, events do not reach the others.
	consoleLock.Lock()
	defer consoleLock.Unlock()

	err := windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, group)
	if err == nil {
		return nil
	}

	if ok, _, attachErr := attachConsole.Call(uintptr(group)); ok == 0 {
		return errors.Join(fmt.Errorf("send break event: %w", err), fmt.Errorf("attach to the runner's console: %w", attachErr))
	}

	defer freeConsole.Call() //nolint:errcheck // the service had no console before

	return windows.GenerateConsoleCtrlEvent(windows.CTRL_BREAK_EVENT, group)
}
