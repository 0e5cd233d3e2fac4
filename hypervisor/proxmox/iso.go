// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// snippetMode allows only root to read a snippet, because a snippet may hold a credential.
const snippetMode = 0o600

// ensureISO starts the upload of the machine's cloud-init ISO, or writes the snippets of the builtin
// source, if that has not been done. The upload runs in parallel with the clone. Standby machines get no
// ISO.
func (p *Provider) ensureISO(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc) error {
	if spec.Standby {
		return nil
	}

	if m.isoState == isoUploading {
		return p.finishUpload(m)
	}

	if m.isoState == isoReady || m.phase != phaseCloning && m.phase != phaseCloned {
		return nil
	}

	if spec.Shape.CloudInitSource == hypervisor.SourceBuiltin {
		return p.writeSnippets(ctx, m, spec, seed)
	}

	storage, err := p.findISOStorage(ctx, m.node)
	if err != nil {
		return err
	}

	if m.isoImage == nil {
		if m.isoImage, err = buildISO(ctx, seed); err != nil {
			return fmt.Errorf("build the cloud-init ISO of machine %d: %w", m.id, err)
		}
	}

	name := p.id.isoName(m.owner.UID)
	m.volid = storage.Storage + ":iso/" + name

	upid, err := p.sendISO(ctx, m, storage, name)
	if err != nil {
		// The next upload replaces a file that this upload may have left.
		m.isoState = isoUnknown
		p.recordTargetFailure(m, "", hypervisor.KindOf(err), errclass.ReasonOf(err, ""), err.Error())

		return err
	}

	m.isoState = isoUploading
	m.isoTask = p.watcher.watchTask(upid, m.owner, nil)

	return nil
}

// connectedNode is the name of the connected node in any call (PVE::API2Tools, PVE::Storage).
const connectedNode = "localhost"

// sendISO uploads the cloud-init ISO. If the storage is not shared, the connected node forwards the ISO to
// the machine's node over SSH. If the storage is shared, the connected node writes the ISO itself, unless
// the storage is not available on that node.
func (p *Provider) sendISO(ctx context.Context, m *machine, storage storageInfo, name string) (string, error) {
	m.isoNode = ""

	if storage.Shared {
		upid, err := p.client.uploadISO(ctx, connectedNode, storage.Storage, name, m.isoImage)
		if apiErr, ok := errors.AsType[*APIError](err); !ok || !strings.Contains(apiErr.Reason, "is not available on node") {
			m.isoNode = connectedNode

			return upid, err
		}
	}

	upid, err := p.client.uploadISO(ctx, m.node, storage.Storage, name, m.isoImage)
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return upid, err
	}

	return "", &hypervisor.Error{
		Kind: hypervisor.UnknownOutcome, Reason: "UploadNotCopied", Err: err,
		Message: fmt.Sprintf("upload the cloud-init ISO of machine %d: Proxmox forwards the ISO to node %s over SSH "+
			"and gives up after 5 s: make sure that the nodes can connect to each other over SSH in less time, "+
			"or use a shared isoStorage", m.id, m.node),
	}
}

// finishUpload processes the result of the upload if the upload has ended.
func (p *Provider) finishUpload(m *machine) error {
	exit, hasEnded := m.isoTask.result()
	if !hasEnded {
		return nil
	}

	m.isoTask = nil

	if isTaskSuccess(exit) {
		m.isoState, m.isoImage = isoReady, nil

		return nil
	}

	m.isoState = isoUnknown

	return p.handleTaskFailure(m, "", "UploadFailed", fmt.Sprintf("upload the cloud-init ISO of machine %d", m.id), exit)
}

func buildISO(ctx context.Context, seed seedFunc) ([]byte, error) {
	content, err := seed(ctx)
	if err != nil {
		return nil, err
	}

	files := map[string][]byte{"user-data": content.UserData, "meta-data": content.MetaData}
	if len(content.NetworkConfig) > 0 {
		files["network-config"] = content.NetworkConfig
	}

	maps.Copy(files, content.Files)

	image, err := cloudinit.BuildISO(files)
	if err != nil {
		return nil, fmt.Errorf("pack ISO: %w", err)
	}

	return image, nil
}

// writeSnippets writes user data and meta data to the mounted snippets storage.
func (p *Provider) writeSnippets(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc) error {
	if err := p.checkSnippetsConfig(spec.Shape); err != nil {
		return err
	}

	content, err := seed(ctx)
	if err != nil {
		return fmt.Errorf("build the cloud-init data of machine %d: %w", m.id, err)
	}

	for part, data := range map[string][]byte{"user": content.UserData, "meta": content.MetaData} {
		path := filepath.Join(p.options.SnippetsPath, p.id.snippetName(m.owner.UID, part))
		if err := replaceFile(path, data); err != nil {
			return fmt.Errorf("write cloud-init data of machine %d: %w", m.id, err)
		}
	}

	m.isoState = isoReady

	return nil
}

// checkSnippetsConfig returns an error that names the missing setting of the builtin source, or nil.
func (p *Provider) checkSnippetsConfig(shape hypervisor.Shape) error {
	switch {
	case shape.SnippetsStorage == "":
		return hypervisor.Errorf(hypervisor.Rejected, "SnippetsStorageMissing",
			"cloudInitSource builtin needs template.proxmox.snippetsStorage")
	case p.options.SnippetsPath == "":
		return hypervisor.Errorf(hypervisor.Rejected, "SnippetsPathMissing",
			"cloudInitSource builtin needs the snippets storage mounted into the operator: "+
				"set snippetsPath in its configuration, or use nocloud")
	default:
		return nil
	}
}

// replaceFile writes a file atomically: readers see the complete file or no change. It follows no symbolic link that
// another user of the storage has created.
func replaceFile(path string, data []byte) error {
	tempPath := path + ".part"
	if err := os.Remove(tempPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write snippet: %w", err)
	}

	file, err := os.OpenFile(tempPath, os.O_WRONLY|os.O_CREATE|os.O_EXCL, snippetMode) // O_EXCL follows no link
	if err != nil {
		return fmt.Errorf("write snippet: %w", err)
	}

	_, err = file.Write(data)
	if err := errors.Join(err, file.Close()); err != nil {
		return errors.Join(fmt.Errorf("write snippet: %w", err), os.Remove(tempPath))
	}

	if err := os.Rename(tempPath, path); err != nil {
		return errors.Join(fmt.Errorf("write snippet: %w", err), os.Remove(tempPath))
	}

	return nil
}

// deleteSnippets deletes the claim's files if they exist.
func (p *Provider) deleteSnippets(uid string) error {
	if p.options.SnippetsPath == "" {
		return nil
	}

	var all error

	for _, part := range []string{"user", "meta"} {
		err := os.Remove(filepath.Join(p.options.SnippetsPath, p.id.snippetName(uid, part)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, fmt.Errorf("delete snippet: %w", err))
		}
	}

	return all
}
