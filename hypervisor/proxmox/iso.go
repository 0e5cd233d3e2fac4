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
)

// snippetMode lets root alone read what may hold a credential.
const snippetMode = 0o600

// uploadISO brings the machine's cloud-init ISO on its way, if that has not been done.
// It runs beside the clone.
func (p *Provider) uploadISO(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc) error {
	if spec.Standby {
		return nil
	}

	if m.isoState == isoUploading {
		return p.uploadEnded(m)
	}

	if m.isoState == isoReady || m.phase != phaseCloning && m.phase != phaseCloned {
		return nil
	}

	if spec.Shape.CloudInitSource == hypervisor.SourceBuiltin {
		return p.writeSnippets(ctx, m, spec, seed)
	}

	storage, err := p.isoStorage(ctx, m.node)
	if err != nil {
		return err
	}

	if m.iso == nil {
		if m.iso, err = buildISO(ctx, seed); err != nil {
			return fmt.Errorf("make the cloud-init ISO of machine %d: %w", m.id, err)
		}
	}

	name := p.id.isoName(m.owner.UID)
	m.volid = storage.Storage + ":iso/" + name

	upid, err := p.sendISO(ctx, m, storage, name)
	if err != nil {
		// Uploading anew replaces what may be there.
		m.isoState = isoUnknown
		p.blame(m, hypervisor.KindOf(err), err.Error())

		return err
	}

	m.isoState = isoUploading
	m.isoTask = p.watch.add(upid, m.owner, nil)

	return nil
}

// askedNode names the node that is connected, in any call (PVE::API2Tools, PVE::Storage).
const askedNode = "localhost"

// sendISO uploads the cloud-init ISO. What is for another node's storage the node that is asked
// passes on by SSH; to one that is shared it has a way of its own.
func (p *Provider) sendISO(ctx context.Context, m *machine, storage storageInfo, name string) (string, error) {
	m.isoAt = ""

	if storage.Shared {
		upid, err := p.client.uploadISO(ctx, askedNode, storage.Storage, name, m.iso)
		if answer, ok := errors.AsType[*APIError](err); !ok || !strings.Contains(answer.Reason, "is not available on node") {
			m.isoAt = askedNode

			return upid, err
		}
	}

	upid, err := p.client.uploadISO(ctx, m.node, storage.Storage, name, m.iso)
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return upid, err
	}

	return "", &hypervisor.Error{
		Kind: hypervisor.UnknownOutcome, Reason: "UploadNotPassedOn", Err: err,
		Message: fmt.Sprintf("upload the cloud-init ISO of machine %d: Proxmox passes it on to node %s by SSH, and gives up after "+
			"5 s: make sure that the nodes reach each other by SSH in less, or take an isoStorage that is shared", m.id, m.node),
	}
}

// uploadEnded takes the upload's result, if it has ended.
func (p *Provider) uploadEnded(m *machine) error {
	exit, done := m.isoTask.result()
	if !done {
		return nil
	}

	m.isoTask = nil

	if taskSucceeded(exit) {
		m.isoState, m.iso = isoReady, nil

		return nil
	}

	m.isoState = isoUnknown

	return p.taskFailed(m, "UploadFailed", fmt.Sprintf("upload the cloud-init ISO of machine %d", m.id), exit)
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

	image, err := cloudinit.ISO(files)
	if err != nil {
		return nil, fmt.Errorf("pack ISO: %w", err)
	}

	return image, nil
}

// writeSnippets puts user data and meta data on the mounted snippets storage.
func (p *Provider) writeSnippets(ctx context.Context, m *machine, spec hypervisor.MachineSpec, seed seedFunc) error {
	if err := p.snippetsMissing(spec.Shape); err != nil {
		return err
	}

	content, err := seed(ctx)
	if err != nil {
		return fmt.Errorf("make the cloud-init data of machine %d: %w", m.id, err)
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

// snippetsMissing says what the builtin source still needs to be told.
func (p *Provider) snippetsMissing(want hypervisor.Shape) error {
	switch {
	case want.SnippetsStorage == "":
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

// replaceFile writes a file so that it is there whole or not at all.
func replaceFile(path string, data []byte) error {
	part := path + ".part"
	if err := os.WriteFile(part, data, snippetMode); err != nil {
		return fmt.Errorf("write snippet: %w", err)
	}

	if err := os.Rename(part, path); err != nil {
		return errors.Join(fmt.Errorf("write snippet: %w", err), os.Remove(part))
	}

	return nil
}

// removeSnippets removes the claim's files, if there are any.
func (p *Provider) removeSnippets(uid string) error {
	if p.options.SnippetsPath == "" {
		return nil
	}

	var all error

	for _, part := range []string{"user", "meta"} {
		err := os.Remove(filepath.Join(p.options.SnippetsPath, p.id.snippetName(uid, part)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			all = errors.Join(all, fmt.Errorf("remove snippet: %w", err))
		}
	}

	return all
}
