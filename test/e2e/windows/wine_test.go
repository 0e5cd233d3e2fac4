// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/test/exe"
)

// wineTimeout limits one program under Wine, on a slow machine.
const wineTimeout = 5 * time.Minute

// folder is the folder of the Windows installation and of the programs for Windows. All tests share them, because they
// take minutes to create on a slow computer.
var folder string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	var err error
	if folder, err = os.MkdirTemp("", "windows-"); err != nil {
		fmt.Fprintln(os.Stderr, "create folder:", err)

		return 1
	}

	defer os.RemoveAll(folder)

	return m.Run()
}

// wine is a Windows installation under Wine.
type wine struct {
	t       *testing.T
	program string
	prefix  string
}

// newWine returns the Windows installation, and creates it first if it does not exist.
func newWine(t *testing.T) *wine {
	t.Helper()

	w := &wine{t: t, program: exe.FindProgram(t, "wine", "wine"), prefix: filepath.Join(folder, "prefix")}
	t.Cleanup(w.stop)

	if _, err := os.Stat(w.drive()); err == nil {
		return w
	}

	if out, err := w.command(t.Context(), "wineboot", "--init").CombinedOutput(); err != nil {
		t.Fatalf("create Windows installation: %v\n%s", err, out)
	}

	// Wine 8 has no bcryptprimitives.dll, which Go programs load. Later versions and Windows have it.
	system := filepath.Join(w.drive(), "windows", "system32", "bcryptprimitives.dll")
	if _, err := os.Stat(system); err != nil {
		w.write(system, newForwarder("bcryptprimitives.dll", "ProcessPrng", "ADVAPI32.SystemFunction036"))
	}

	return w
}

// stop ends all processes of the installation, which writes the registry to its files.
func (w *wine) stop() {
	for _, option := range []string{"-k", "-w"} {
		cmd := exec.CommandContext(context.Background(), "wineserver", option)
		cmd.Env = w.environment()
		_ = cmd.Run() // fails if no process runs
	}
}

// drive returns the folder of drive C.
func (w *wine) drive() string { return filepath.Join(w.prefix, "drive_c") }

func (w *wine) environment() []string {
	return append(os.Environ(), "WINEPREFIX="+w.prefix, "WINEDEBUG=-all", "WINEARCH=win64", "DISPLAY=", "WORK_DRIVE=C:")
}

// command returns a command under Wine with its own process group, because Wine starts other processes.
func (w *wine) command(ctx context.Context, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(ctx, wineTimeout)
	w.t.Cleanup(cancel)

	cmd := exec.CommandContext(ctx, w.program, args...)
	cmd.Env, cmd.WaitDelay = w.environment(), 10*time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}

	return cmd
}

// write writes a file with its folders.
func (w *wine) write(name string, data []byte) {
	w.t.Helper()

	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		w.t.Fatal(err)
	}

	if err := os.WriteFile(name, data, 0o600); err != nil {
		w.t.Fatal(err)
	}
}

// build builds a program for Windows.
func (w *wine) build(pkg, name string) string {
	w.t.Helper()

	out := filepath.Join(folder, name)
	if _, err := os.Stat(out); err == nil {
		return out
	}

	w.goCommand("build", "-ldflags=-s -w", "-o", out, pkg)

	return out
}

// goCommand runs a command of Go for Windows.
func (w *wine) goCommand(command string, args ...string) {
	w.t.Helper()

	args = append([]string{command, "-trimpath", "-tags=grpcnotrace", "-overlay", w.overlay()}, args...)
	cmd := exec.CommandContext(w.t.Context(), "go", args...)
	cmd.Env = append(os.Environ(), "GOOS=windows", "CGO_ENABLED=0")

	if text, err := cmd.CombinedOutput(); err != nil {
		w.t.Fatalf("go %s for Windows: %v\n%s", strings.Join(args, " "), err, text)
	}
}

// overlay returns a file for Go's flag -overlay. Wine 8 does not have the call with which os.RemoveAll deletes folders
// (FileDispositionInformationEx), and says so with another status than an old Windows. With the overlay, os.RemoveAll
// deletes folders as on an old Windows.
func (w *wine) overlay() string {
	w.t.Helper()

	const status, statusOfWine = "case STATUS_INVALID_INFO_CLASS,", "case NTStatus(0xC0000002), STATUS_INVALID_INFO_CLASS,"

	root, err := exec.CommandContext(w.t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		w.t.Fatalf("find Go: %v", err)
	}

	source := filepath.Join(strings.TrimSpace(string(root)), "src", "internal", "syscall", "windows", "at_windows.go")

	text, err := os.ReadFile(source)
	if err != nil || strings.Count(string(text), status) != 1 {
		w.t.Fatalf("%s does not contain %q once (%v)", source, status, err)
	}

	changed, file := filepath.Join(folder, "at_windows.go"), filepath.Join(folder, "overlay.json")
	w.write(changed, []byte(strings.Replace(string(text), status, statusOfWine, 1)))

	list, err := json.Marshal(map[string]map[string]string{"Replace": {source: changed}})
	if err != nil {
		w.t.Fatal(err)
	}

	w.write(file, list)

	return file
}

// countProcesses returns how many processes have the text in their arguments.
func countProcesses(text string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	count := 0

	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})), text) {
			count++
		}
	}

	return count
}

// newForwarder returns a DLL for amd64 without code, whose only function is a function of another DLL (PE format,
// "Export Directory Table": an address within the table is the name of a function of another DLL).
func newForwarder(name, function, target string) []byte {
	const (
		section   = 0x1000
		alignment = 0x200
		tables    = 40 + 4 + 4 + 2
	)

	texts := []string{name + "\x00", function + "\x00", target + "\x00"}
	addresses := make([]uint32, len(texts))
	next := uint32(section + tables)

	for i, text := range texts {
		addresses[i] = next
		next += uint32(len(text))
	}

	export := pack([]uint32{0, 0, 0, addresses[0], 1, 1, 1, section + 40, section + 44, section + 48, addresses[2], addresses[1]}, uint16(0))
	export = append(export, strings.Join(texts, "")...)
	size := uint32(len(export))

	header := append([]byte("MZ"), make([]byte, 58)...)
	header = append(header, pack(uint32(0x40))...)
	header = append(header, "PE\x00\x00"...)
	header = append(header, pack(uint16(0x8664), uint16(1), []uint32{0, 0, 0}, uint16(240), uint16(0x2022))...)
	header = append(header, pack(uint16(0x20b), uint16(0), []uint32{0, alignment, 0, 0, section}, uint64(0x180000000),
		[]uint32{section, alignment}, []uint16{6, 0, 0, 0, 6, 0}, []uint32{0, 2 * section, alignment, 0}, uint16(3), uint16(0x160),
		[]uint64{0x100000, 0x1000, 0x100000, 0x1000}, []uint32{0, 16, section, size}, make([]byte, 15*8))...)
	header = append(header, ".edata\x00\x00"...)
	header = append(header, pack([]uint32{size, section, alignment, alignment, 0, 0, 0, 0x40000040})...)

	out := make([]byte, 2*alignment)
	copy(out, header)
	copy(out[alignment:], export)

	return out
}

// pack encodes values in little-endian order.
func pack(values ...any) []byte {
	var out bytes.Buffer

	for _, value := range values {
		if err := binary.Write(&out, binary.LittleEndian, value); err != nil {
			panic(fmt.Sprint("pack: ", err)) // the values are constants of this file
		}
	}

	return out.Bytes()
}
