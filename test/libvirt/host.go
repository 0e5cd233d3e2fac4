// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	"github.com/digitalocean/go-libvirt/socket/dialers"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

const (
	// startTimeout limits the start of a host, which asks QEMU for its capabilities.
	startTimeout = 2 * time.Minute
	// account is the user and the group that run libvirtd if this process runs as root.
	account = 65534
	// accessToFolders is the mode of a host's folders.
	accessToFolders = 0o755
	ownerOnly       = 0o600
	readableByAll   = 0o644
	// templateDisk is the capacity of a template's disk, to which guests grow their file system.
	templateDisk = 4 << 30
	installHint  = "install libvirt-daemon, libvirt-daemon-driver-qemu and qemu-system-x86, or run hack/setup.sh packages"
)

// Options of a host.
type Options struct {
	// TLS makes libvirtd serve TLS, too. Nil means that it serves only its Unix socket.
	TLS *TLS
	// PoolSize is the size of the file system of the pool PoolName in bytes. 0 means that the pool is a
	// directory. It needs the permission to mount.
	PoolSize int64
	// KVM lets libvirtd use /dev/kvm if this process runs as root. Otherwise it is what the user may use.
	KVM bool
}

// TLS has files in PEM: the certificate and the private key of libvirtd, and the CA of its clients.
type TLS struct{ CAFile, CertFile, KeyFile string }

// PoolName is the name of the storage pool that each host has.
const PoolName = "machines"

// TemplateName is the name of the domain that CreateTemplate defines.
const TemplateName = "hyperfleet-runner"

// Host is a running libvirtd.
type Host struct {
	// Dir contains the directories and sockets of the host. Each user can read it.
	Dir string
	// TLSAddress is the address host:port for TLS.
	TLSAddress string

	options Options
	process *procrun.Process
}

// Start starts a host for one test, and stops it when the test ends. If libvirt is not installed, Start fails
// the test and does not skip it.
func Start(t testing.TB, options Options) *Host {
	t.Helper()

	h, err := Open(context.Background(), options)
	if err != nil {
		t.Fatal(err)
	}

	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})

	return h
}

// CheckInstalled returns an error that says what to install if the programs of a host are missing.
func CheckInstalled() error {
	_, err := findProgram("libvirtd")

	return err
}

// Open starts a host. The caller closes it.
func Open(ctx context.Context, options Options) (*Host, error) {
	if err := CheckInstalled(); err != nil {
		return nil, err
	}

	// The paths of sockets in the directory must be short.
	dir, err := os.MkdirTemp("", "hflv-")
	if err != nil {
		return nil, fmt.Errorf("start libvirtd: %w", err)
	}

	h := &Host{Dir: dir, options: options}

	err = h.prepare()
	if err == nil {
		err = h.serve(ctx)
	}

	if err == nil {
		err = h.DefinePool(PoolName, h.path("pool"))
	}

	if err != nil {
		return nil, errors.Join(err, h.Close())
	}

	return h, nil
}

// findProgram finds a program, also where only root has it in the PATH.
func findProgram(name string) (string, error) {
	for _, candidate := range []string{name, "/usr/sbin/" + name, "/sbin/" + name} {
		if found, err := exec.LookPath(candidate); err == nil {
			return found, nil
		}
	}

	return "", fmt.Errorf("find %s: %w: %s", name, exec.ErrNotFound, installHint)
}

func (h *Host) path(name string) string { return filepath.Join(h.Dir, name) }

// Socket returns the path of libvirtd's Unix socket.
func (h *Host) Socket() string { return h.path("run/libvirt-sock") }

// URI returns the URI of the host over its Unix socket.
func (h *Host) URI() string { return "qemu+unix:///session?socket=" + h.Socket() }

// TLSURI returns the URI of the host over TLS.
func (h *Host) TLSURI() string { return "qemu+tls://" + h.TLSAddress + "/session" }

// prepare creates the directories and the configuration.
func (h *Host) prepare() error {
	for _, name := range []string{"", "libvirt", "cache", "run", "data", "pool"} {
		if err := errors.Join(os.MkdirAll(h.path(name), accessToFolders), os.Chmod(h.path(name), accessToFolders)); err != nil {
			return fmt.Errorf("start libvirtd: %w", err)
		}
	}

	return h.configure()
}

// configure writes the configuration.
func (h *Host) configure() error {
	settings := []string{fmt.Sprintf("unix_sock_dir = %q\nauth_unix_rw = \"none\"\nlog_outputs = \"3:stderr\"\n", h.path("run"))}

	if cert := h.options.TLS; cert != nil {
		address, err := procrun.PickAddress()
		if err != nil {
			return fmt.Errorf("start libvirtd: %w", err)
		}

		h.TLSAddress = address
		_, port, _ := net.SplitHostPort(address)
		settings = append(settings,
			fmt.Sprintf("listen_tls = 1\nlisten_addr = \"127.0.0.1\"\ntls_port = %q\nauth_tls = \"none\"\n", port))

		for setting, source := range map[string]string{"ca_file": cert.CAFile, "cert_file": cert.CertFile, "key_file": cert.KeyFile} {
			content, err := os.ReadFile(source)
			if err == nil {
				err = os.WriteFile(h.path(setting), content, ownerOnly)
			}

			if err != nil {
				return fmt.Errorf("start libvirtd: %w", err)
			}

			settings = append(settings, fmt.Sprintf("%s = %q\n", setting, h.path(setting)))
		}
	}

	qemu := "security_driver = \"none\"\ncgroup_controllers = []\nnamespaces = []\nstdio_handler = \"file\"\n"

	err := errors.Join(
		os.WriteFile(h.path("libvirt/libvirtd.conf"), []byte(strings.Join(settings, "")), ownerOnly),
		os.WriteFile(h.path("libvirt/qemu.conf"), []byte(qemu), ownerOnly),
		h.configureTPMs(),
		copyCapabilities(h.path("cache")),
		h.giveAway(h.Dir),
	)
	if err != nil {
		return fmt.Errorf("start libvirtd: %w", err)
	}

	return nil
}

// configureTPMs gives the host an authority of its own for the keys of emulated TPMs. swtpm_setup reads the
// configuration of its user.
func (h *Host) configureTPMs() error {
	tool, err := findProgram("swtpm_localca")
	if err != nil {
		tool = "swtpm_localca" // only machines with a TPM need it
	}

	authority := h.path("tpm-ca")
	files := map[string]string{
		"swtpm_setup.conf": "create_certs_tool = " + tool + "\ncreate_certs_tool_config = " + h.path("swtpm-localca.conf") +
			"\ncreate_certs_tool_options = " + h.path("swtpm-localca.options") + "\nactive_pcr_banks = sha256\n",
		"swtpm-localca.conf": "statedir = " + authority + "\nsigningkey = " + authority + "/signkey.pem\nissuercert = " +
			authority + "/issuercert.pem\ncertserial = " + authority + "/certserial\n",
		"swtpm-localca.options": "--platform-manufacturer Test\n--platform-version 1\n--platform-model Test\n",
	}

	errs := []error{os.MkdirAll(authority, accessToFolders)}
	for name, content := range files {
		errs = append(errs, os.WriteFile(h.path(name), []byte(content), readableByAll))
	}

	return errors.Join(errs...)
}

// ReadTPM returns the state of a machine's emulated TPM, and nil if it has none. It has the seeds of the TPM.
func (h *Host) ReadTPM(machine string) ([]byte, error) {
	content, err := os.ReadFile(h.path("libvirt/qemu/swtpm/" + machine + "/tpm2/tpm2-00.permall"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}

	return content, err
}

// giveAway makes the directory belong to the user that runs libvirtd.
func (h *Host) giveAway(dir string) error {
	if os.Geteuid() != 0 {
		return nil
	}

	return filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}

		return os.Lchown(path, account, account)
	})
}

// script starts libvirtd ($1: its arguments) in new namespaces, where a shell waits for orphaned QEMU
// processes. A pool with a limited size is a file system in memory. The locks of consoles name processes of this
// namespace, so libvirtd has a folder of its own for them: otherwise the lock of a killed libvirtd would stay forever.
const script = `set -e
mount -t tmpfs -o mode=1777 tmpfs "$(readlink -f /var/lock)"
if [ "$SIZE" != 0 ]; then mount -t tmpfs -o size="$SIZE",mode=777 tmpfs "$POOL"; fi
"$@" &
wait`

// serve starts libvirtd and waits until it responds.
func (h *Host) serve(parent context.Context) error {
	program, err := findProgram("libvirtd")
	if err != nil {
		return err
	}

	args := []string{program, "-f", h.path("libvirt/libvirtd.conf"), "-p", h.path("run/pid")}
	if h.options.TLS != nil {
		args = append(args, "--listen")
	}

	if os.Geteuid() == 0 {
		id := strconv.Itoa(account)
		args = append([]string{"setpriv", "--reuid", id, "--regid", id, h.groups(), "--pdeathsig", "SIGKILL"}, args...)
	}

	if namespaces := namespaceArgs(); namespaces != nil {
		args = append(asUser(), args...)
		args = append(append(namespaces, "sh", "-c", script, "sh"), args...)
	} else if h.options.PoolSize > 0 {
		return errors.New("start libvirtd: the kernel permits no namespaces, so no file system can be mounted for a pool")
	}

	if args[0], err = findProgram(args[0]); err != nil && args[0] != program {
		return err
	}

	h.process, err = procrun.Start(context.Background(), procrun.Spec{
		Name: "libvirtd", Path: args[0], Args: args[1:], Dir: h.Dir, LogPath: h.path("log"), GracePeriod: time.Second,
		Env: []string{
			"PATH=" + os.Getenv("PATH") + ":/usr/sbin:/sbin", "HOME=" + h.Dir, "XDG_CONFIG_HOME=" + h.Dir, "LC_ALL=C",
			"XDG_CACHE_HOME=" + h.path("cache"), "XDG_RUNTIME_DIR=" + h.path("run"), "XDG_DATA_HOME=" + h.path("data"),
			"SIZE=" + strconv.FormatInt(h.options.PoolSize, 10), "POOL=" + h.path("pool"),
		},
	})
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(parent, startTimeout)
	defer cancel()

	if err := h.process.WaitReady(ctx, h.probe); err != nil {
		return err
	}

	return keepCapabilities(h.path("cache"))
}

// groups returns the argument of setpriv for the groups of libvirtd.
func (h *Host) groups() string {
	info, err := os.Stat("/dev/kvm")
	if err != nil || !h.options.KVM {
		return "--clear-groups"
	}

	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return "--clear-groups"
	}

	return "--groups=" + strconv.Itoa(int(stat.Gid))
}

// asUser returns the command that runs a program as this process's user again. Only root can mount, so an ordinary user is
// root in the namespaces, in which libvirtd would take itself for the system's.
func asUser() []string {
	if os.Geteuid() == 0 {
		return nil
	}

	return []string{
		"unshare", "--user", "--map-user=" + strconv.Itoa(os.Geteuid()), "--map-group=" + strconv.Itoa(os.Getegid()),
	}
}

// namespaceArgs returns the command that runs a program in new namespaces, or nil if the kernel does not permit
// it.
func namespaceArgs() []string {
	args := []string{"unshare", "--pid", "--fork", "--kill-child", "--mount-proc"}
	if os.Geteuid() != 0 {
		args = append(args, "--user", "--map-root-user")
	}

	try := append(append(slices.Clone(args), asUser()...), "true")
	if err := exec.Command(try[0], try[1:]...).Run(); err != nil { //nolint:noctx // fixed arguments
		return nil
	}

	return args
}

// probe connects to libvirtd. The first connection takes as long as QEMU tells its capabilities.
func (h *Host) probe(context.Context) error {
	return h.Use(func(rpc *golibvirt.Libvirt) error {
		_, err := rpc.ConnectGetCapabilities()

		return err
	})
}

// Use connects to the host as an administrator, calls use, and closes the connection.
func (h *Host) Use(use func(*golibvirt.Libvirt) error) error {
	rpc, closeConn, err := h.Connect()
	if err != nil {
		return err
	}
	defer closeConn()

	return use(rpc)
}

// Connect connects to the host as an administrator.
func (h *Host) Connect() (rpc *golibvirt.Libvirt, closeConn func(), err error) {
	conn, err := net.Dial("unix", h.Socket()) //nolint:noctx // a Unix socket on this host
	if err != nil {
		return nil, nil, err
	}

	rpc = golibvirt.NewWithDialer(dialers.NewAlreadyConnected(conn))
	if err := rpc.ConnectToURI(golibvirt.QEMUSession); err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}

	return rpc, func() { _ = conn.Close() }, nil
}

// DefinePool creates a storage pool in a directory.
func (h *Host) DefinePool(name, dir string) error {
	err := errors.Join(os.MkdirAll(dir, accessToFolders), h.giveAway(dir))
	if err != nil {
		return fmt.Errorf("define pool %s: %w", name, err)
	}

	return h.Use(func(rpc *golibvirt.Libvirt) error {
		definition := fmt.Sprintf("<pool type='dir'><name>%s</name><target><path>%s</path></target></pool>", name, dir)

		_, err := rpc.StoragePoolCreateXML(definition, 0)

		return err
	})
}

// CreateVolume creates an empty disk in a pool.
func (h *Host) CreateVolume(pool, name string, bytes int64) error {
	return h.Use(func(rpc *golibvirt.Libvirt) error {
		definition := fmt.Sprintf("<volume><name>%s</name><capacity>%d</capacity><target><format type='qcow2'/></target></volume>",
			name, bytes)

		ref, err := rpc.StoragePoolLookupByName(pool)
		if err == nil {
			_, err = rpc.StorageVolCreateXML(ref, definition, 0)
		}

		return err
	})
}

// Names and sizes of the volumes that fill a pool. The smallest is a page of a file system in memory.
const (
	fillerPrefix  = "filler-"
	smallestBytes = 4096
)

// FillPool fills the pool PoolName, which needs a size, with volumes.
func (h *Host) FillPool() error {
	return h.Use(func(rpc *golibvirt.Libvirt) error {
		pool, err := rpc.StoragePoolLookupByName(PoolName)
		if err != nil {
			return err
		}

		for size := h.options.PoolSize; size >= smallestBytes; size /= 2 {
			// Each volume that does not fit is refused.
			_, _ = rpc.StorageVolCreateXML(pool, fmt.Sprintf("<volume><name>%s%d</name><capacity>%d</capacity>"+
				"<allocation>%d</allocation><target><format type='raw'/></target></volume>", fillerPrefix, size, size, size), 0)
		}

		return rpc.StoragePoolRefresh(pool, 0)
	})
}

// EmptyPool deletes what FillPool has created.
func (h *Host) EmptyPool() error {
	return h.Use(func(rpc *golibvirt.Libvirt) error {
		pool, err := rpc.StoragePoolLookupByName(PoolName)
		if err != nil {
			return err
		}

		volumes, _, err := rpc.StoragePoolListAllVolumes(pool, 1, 0)

		for _, v := range volumes {
			if strings.HasPrefix(v.Name, fillerPrefix) {
				err = errors.Join(err, rpc.StorageVolDelete(v, 0))
			}
		}

		return errors.Join(err, rpc.StoragePoolRefresh(pool, 0))
	})
}

// ListMachines returns the names of the domains and volumes that belong to machines of an operator.
func (h *Host) ListMachines() ([]string, error) {
	var out []string

	err := h.Use(func(rpc *golibvirt.Libvirt) error {
		domains, _, err := rpc.ConnectListAllDomains(1, 0)
		if err != nil {
			return err
		}

		for _, d := range domains {
			if d.Name != TemplateName {
				out = append(out, "domain "+d.Name)
			}
		}

		pool, err := rpc.StoragePoolLookupByName(PoolName)
		if err != nil {
			return err
		}

		volumes, _, err := rpc.StoragePoolListAllVolumes(pool, 1, 0)
		for _, v := range volumes {
			if strings.HasPrefix(v.Name, "hf-") {
				out = append(out, "volume "+v.Name)
			}
		}

		return err
	})

	return out, err
}

// Suspend stops libvirtd from running, as if the host hung. Resume lets it run again.
func (h *Host) Suspend() error { return h.process.Signal(syscall.SIGSTOP) }

// Resume ends Suspend.
func (h *Host) Resume() error { return h.process.Signal(syscall.SIGCONT) }

// Kill kills libvirtd and, if it runs in namespaces of its own, its machines.
func (h *Host) Kill() error { return h.process.Kill() }

// Restart starts a killed libvirtd again, as after a power failure: what is in its run directory is lost.
func (h *Host) Restart(ctx context.Context) error {
	err := errors.Join(os.RemoveAll(h.path("run")), os.Mkdir(h.path("run"), accessToFolders), h.giveAway(h.path("run")))
	if err == nil {
		err = h.serve(ctx)
	}

	if err != nil {
		return err
	}

	return h.DefinePool(PoolName, h.path("pool"))
}

// Reinstall replaces the host by an empty one with the same address: without machines, volumes and definitions.
func (h *Host) Reinstall(ctx context.Context) error {
	return errors.Join(h.Kill(), os.RemoveAll(h.path("libvirt/qemu")), os.RemoveAll(h.path("pool")), h.Restart(ctx))
}

// EnableTLS restarts the host, which then serves TLS as well.
func (h *Host) EnableTLS(ctx context.Context, files TLS) error {
	h.options.TLS = &files

	return errors.Join(h.Kill(), h.configure(), h.Restart(ctx))
}

// Close ends libvirtd and its machines, and deletes the directory.
func (h *Host) Close() error {
	var err error
	if h.process != nil {
		err = h.process.Kill()
	}

	files, _ := filepath.Glob(h.path("run/libvirt/qemu/run/*.pid"))
	for _, file := range files {
		if strings.HasSuffix(file, "driver.pid") || namespaceArgs() != nil {
			continue // in namespaces, the IDs are not those of this process
		}

		if text, err := os.ReadFile(file); err == nil {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	}

	return errors.Join(err, os.RemoveAll(h.Dir))
}
