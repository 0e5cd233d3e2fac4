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

// sshdDir is a directory that sshd requires when root starts it.
const sshdDir = "/run/sshd"

// OpenSSHServer is a second SSH server of a host: the sshd of OpenSSH, which runs its commands at
// the host. The faults of the host do not affect this server.
type OpenSSHServer struct {
	// User is the user that can log in: the user of this process. Unless root runs sshd, sshd
	// accepts no other user.
	User string
	// HostKey is the fingerprint of the server's key.
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

// StartOpenSSH starts a second SSH server that accepts the host's authorized keys. The caller closes
// the server before the host.
func (h *Host) StartOpenSSH(ctx context.Context) (*OpenSSHServer, error) {
	if h.box == nil {
		return nil, errors.New("start sshd: a light host executes nothing")
	}

	// sshd requires that it is started with an absolute path.
	program, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		return nil, fmt.Errorf("start sshd: %w: install the package openssh-server", err)
	}

	if os.Geteuid() == 0 {
		if err := os.MkdirAll(sshdDir, 0o755); err != nil {
			return nil, fmt.Errorf("start sshd: %w", err)
		}
	}

	currentUser, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("start sshd: %w", err)
	}

	dir := filepath.Join(h.box.dir, "sshd")
	s := &OpenSSHServer{
		User: currentUser.Username, program: program, config: filepath.Join(dir, "config"),
		conns: map[*net.TCPConn]bool{},
	}

	if err := s.configure(dir, h); err != nil {
		return nil, fmt.Errorf("configure sshd: %w", err)
	}

	if s.listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("start sshd: %w", err)
	}

	s.serving.Go(s.accept)

	return s, nil
}

func (s *OpenSSHServer) configure(dir string, h *Host) error {
	private, public, err := NewKey()
	if err != nil {
		return err
	}

	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(public)) //nolint:dogsled // the other results are optional parts of the line
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
		"command":         {h.box.buildEnterScript(), 0o700},
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

// buildEnterScript returns a script that runs the command of an SSH session at the host.
func (b *box) buildEnterScript() string {
	words := append(buildNsenterArgs("\x00", "--pid", "--"), b.buildEnvironment()...)
	words = append(words, "/sim/bin/setsid", "--wait", "/bin/bash", "-c")

	for i, word := range words {
		words[i] = "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}

	pid := `"$(cat ` + filepath.Join(b.dir, "pid") + `)"`

	return "#!/bin/bash\nexec " + strings.ReplaceAll(strings.Join(words, " "), "'\x00'", pid) + ` "$SSH_ORIGINAL_COMMAND"` + "\n"
}

// Certify makes the server offer a certificate, as [Host.Certify] does for the host.
func (s *OpenSSHServer) Certify(authority ssh.Signer, change func(*ssh.Certificate)) error {
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

// Address returns host:port.
func (s *OpenSSHServer) Address() string { return s.listener.Addr().String() }

// Close closes all connections and waits until each sshd has ended.
func (s *OpenSSHServer) Close() error {
	err := s.listener.Close()

	s.mu.Lock()

	// sshd has the socket as well. If Close closed only this descriptor, the client would not notice
	// it.
	for conn := range s.conns {
		_, _ = conn.CloseRead(), conn.CloseWrite()
	}

	s.mu.Unlock()
	s.serving.Wait()

	return err
}

// accept starts an sshd for each connection, as inetd does (sshd(8), -i).
func (s *OpenSSHServer) accept() {
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

func (s *OpenSSHServer) serve(conn *net.TCPConn) {
	defer func() { _ = conn.Close() }()

	file, err := conn.File()
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }()

	cmd := exec.Command(s.program, "-i", "-e", "-f", s.config) //nolint:noctx // sshd ends with its connection
	cmd.Stdin, cmd.Stdout = file, file
	_ = cmd.Run()
}
