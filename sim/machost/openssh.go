// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/crypto/ssh"
)

// sshdDir is a folder that sshd demands to be there when it is started by root.
const sshdDir = "/run/sshd"

// OpenSSH is a second way into a host: the sshd of OpenSSH, which runs what it is sent at
// the host. It knows no faults.
type OpenSSH struct {
	// User that may log in: the one that runs this program, as sshd lets no other in unless
	// root runs it.
	User string
	// HostKey is the fingerprint of its key.
	HostKey string

	key      ssh.PublicKey
	dir      string
	listener net.Listener
	program  string
	config   string
	serving  sync.WaitGroup

	mu    sync.Mutex
	conns map[*net.TCPConn]bool
}

// OpenSSH opens the second way, for the keys of the host. Close it before the host.
func (h *Host) OpenSSH(ctx context.Context) (*OpenSSH, error) {
	if h.box == nil {
		return nil, errors.New("start sshd: a light host runs nothing")
	}

	// It refuses to be called by a name without a path.
	program, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		return nil, fmt.Errorf("start sshd: %w: install the package openssh-server", err)
	}

	if os.Geteuid() == 0 {
		if err := os.MkdirAll(sshdDir, 0o755); err != nil {
			return nil, fmt.Errorf("start sshd: %w", err)
		}
	}

	me, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("start sshd: %w", err)
	}

	dir := filepath.Join(h.box.dir, "sshd")
	s := &OpenSSH{User: me.Username, program: program, config: filepath.Join(dir, "config"), conns: map[*net.TCPConn]bool{}}

	if err := s.configure(dir, h); err != nil {
		return nil, fmt.Errorf("configure sshd: %w", err)
	}

	if s.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start sshd: %w", err)
	}

	s.serving.Go(s.accept)

	return s, nil
}

func (s *OpenSSH) configure(dir string, h *Host) error {
	private, public, err := NewKey()
	if err != nil {
		return err
	}

	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(public)) //nolint:dogsled // what else the line may have
	if err != nil {
		return err
	}

	s.HostKey, s.key, s.dir = ssh.FingerprintSHA256(key), key, dir

	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}

	command := filepath.Join(dir, "command")

	for name, file := range map[string]struct {
		text string
		mode os.FileMode
	}{
		"host-key":        {private, 0o600},
		"authorized-keys": {strings.Join(h.options.AuthorizedKeys, ""), 0o600},
		"command":         {h.box.enterScript(), 0o700},
		"config": {strings.Join([]string{
			"HostKey " + filepath.Join(dir, "host-key"), "Include " + filepath.Join(dir, "certified"),
			"AuthorizedKeysFile " + filepath.Join(dir, "authorized-keys"),
			"ForceCommand " + command, "PidFile none", "UsePAM no", "StrictModes no", "PermitRootLogin prohibit-password",
			"PasswordAuthentication no", "KbdInteractiveAuthentication no", "",
		}, "\n"), 0o600},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(file.text), file.mode); err != nil {
			return err
		}
	}

	return nil
}

// enterScript runs at the host what somebody asks of sshd.
func (b *box) enterScript() string {
	words := append(enter("\x00", "--pid", "--"), b.environment()...)
	words = append(words, "/sim/bin/setsid", "--wait", "/bin/bash", "-c")

	for i, word := range words {
		words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}

	pid := `"$(cat ` + filepath.Join(b.dir, "pid") + `)"`

	return "#!/bin/bash\nexec " + strings.ReplaceAll(strings.Join(words, " "), "'\x00'", pid) + ` "$SSH_ORIGINAL_COMMAND"` + "\n"
}

// Certify has it show a certificate as [Host.Certify] has the host.
func (s *OpenSSH) Certify(authority ssh.Signer, change func(*ssh.Certificate)) error {
	cert, err := NewHostCert(s.key, s.Address(), authority, change)
	if err != nil {
		return err
	}

	file := filepath.Join(s.dir, "host-key-cert.pub")

	return errors.Join(
		os.WriteFile(file, ssh.MarshalAuthorizedKey(cert), 0o600),
		os.WriteFile(filepath.Join(s.dir, "certified"), []byte("HostCertificate "+file+"\n"), 0o600),
	)
}

// Address is host:port.
func (s *OpenSSH) Address() string { return s.listener.Addr().String() }

// Close cuts all connections.
func (s *OpenSSH) Close() error {
	err := s.listener.Close()

	s.mu.Lock()

	// The socket is sshd's too: closing our end of it would tell nobody.
	for conn := range s.conns {
		_, _ = conn.CloseRead(), conn.CloseWrite()
	}

	s.mu.Unlock()
	s.serving.Wait()

	return err
}

// accept hands each connection to an sshd of its own, as inetd does (sshd(8), -i).
func (s *OpenSSH) accept() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}

		tcp, ok := conn.(*net.TCPConn)
		if !ok {
			_ = conn.Close()

			continue
		}

		s.mu.Lock()
		s.conns[tcp] = true
		s.mu.Unlock()

		s.serving.Go(func() {
			s.serve(tcp)

			s.mu.Lock()
			delete(s.conns, tcp)
			s.mu.Unlock()
		})
	}
}

func (s *OpenSSH) serve(conn *net.TCPConn) {
	defer func() { _ = conn.Close() }()

	file, err := conn.File()
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()

	cmd := exec.Command(s.program, "-i", "-e", "-f", s.config) //nolint:noctx // it ends with its connection
	cmd.Stdin, cmd.Stdout = file, file
	_ = cmd.Run()
}
