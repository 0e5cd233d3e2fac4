// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package execguest

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"mime/multipart"
	"net/mail"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"
)

// cloudConfig is the part of a guest's user data that the simulator applies.
type cloudConfig struct {
	hostname string
	files    []guestFile
	skipped  []string // parts that a real guest would execute
}

// guestFile is one entry of write_files.
type guestFile struct {
	path         string
	data         []byte
	mode         uint32
	shouldAppend bool
}

const maxUserData = 16 << 20

// UserData is the part of user data that a machine applies: a hostname, and files by their paths.
type UserData struct {
	Hostname string
	Files    map[string]File
}

// File is one entry of write_files.
type File struct {
	Data []byte
	Mode uint32
}

// ParseUserData parses user data in the #cloud-config format or a MIME message of several parts.
// Either may be compressed with gzip.
func ParseUserData(data []byte) (UserData, error) {
	cc, err := parseUserData(data)
	if err != nil {
		return UserData{}, err
	}
	out := UserData{Hostname: cc.hostname, Files: map[string]File{}}
	for _, f := range cc.files {
		out.Files[f.path] = File{Data: f.data, Mode: f.mode}
	}
	return out, nil
}

func parseUserData(data []byte) (*cloudConfig, error) {
	docs, skipped, err := splitUserData(data)
	if err != nil {
		return nil, err
	}
	merged := map[string]any{}
	for _, d := range docs {
		var doc map[string]any
		if err := yaml.Unmarshal(d, &doc); err != nil {
			return nil, fmt.Errorf("parse cloud-config: %w", err)
		}
		mergeConfig(merged, doc)
	}
	cc := &cloudConfig{skipped: skipped}
	cc.hostname, _ = merged["hostname"].(string)
	list, _ := merged["write_files"].([]any)
	for i, raw := range list {
		f, err := parseWriteFile(raw)
		if err != nil {
			return nil, fmt.Errorf("write_files[%d]: %w", i, err)
		}
		cc.files = append(cc.files, f)
	}
	return cc, nil
}

func splitUserData(data []byte) (docs [][]byte, skipped []string, err error) {
	if bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		if data, err = gunzip(data); err != nil {
			return nil, nil, err
		}
	}
	switch head := string(data[:min(len(data), 64)]); {
	case strings.HasPrefix(head, "#cloud-config"):
		return [][]byte{data}, nil, nil
	case strings.HasPrefix(head, "Content-Type:"), strings.HasPrefix(head, "MIME-Version:"):
		return splitMIME(data)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, nil, nil
	default:
		first, _, _ := strings.Cut(head, "\n")
		return nil, []string{first}, nil
	}
}

func splitMIME(data []byte) (docs [][]byte, skipped []string, err error) {
	msg, err := mail.ReadMessage(bytes.NewReader(data))
	if err != nil {
		return nil, nil, fmt.Errorf("read MIME message: %w", err)
	}
	ctype, args, err := mime.ParseMediaType(msg.Header.Get("Content-Type"))
	if err != nil || !strings.HasPrefix(ctype, "multipart/") {
		return nil, nil, fmt.Errorf("read MIME message: unexpected content type %q", ctype)
	}
	mr := multipart.NewReader(msg.Body, args["boundary"])
	for {
		part, err := mr.NextRawPart()
		if errors.Is(err, io.EOF) {
			return docs, skipped, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("read MIME part: %w", err)
		}
		body, err := readPart(part)
		if err != nil {
			return nil, nil, err
		}
		mediaType, _, _ := mime.ParseMediaType(part.Header.Get("Content-Type"))
		if mediaType == "text/cloud-config" || bytes.HasPrefix(body, []byte("#cloud-config")) {
			docs = append(docs, body)
			continue
		}
		skipped = append(skipped, mediaType)
	}
}

func readPart(p *multipart.Part) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(p, maxUserData))
	if err != nil {
		return nil, fmt.Errorf("read MIME part: %w", err)
	}
	if strings.EqualFold(p.Header.Get("Content-Transfer-Encoding"), "base64") {
		return decodeBase64(string(body))
	}
	return body, nil
}

// mergeConfig merges parts as cloud-init does by default: a later key replaces an earlier one. A
// part can set merge_how or merge_type to append lists and to merge maps.
func mergeConfig(target, part map[string]any) {
	policy := fmt.Sprint(part["merge_how"], part["merge_type"])
	appendLists := strings.Contains(policy, "append")
	for k, v := range part {
		old, hasList := target[k].([]any)
		add, isList := v.([]any)
		if appendLists && hasList && isList {
			target[k] = append(append([]any{}, old...), add...)
			continue
		}
		oldMap, hasMap := target[k].(map[string]any)
		newMap, isMap := v.(map[string]any)
		if strings.Contains(policy, "recurse_dict") && hasMap && isMap {
			next := maps.Clone(oldMap)
			mergeConfig(next, newMap)
			target[k] = next
			continue
		}
		target[k] = v
	}
}

func parseWriteFile(raw any) (guestFile, error) {
	m, ok := raw.(map[string]any)
	if !ok {
		return guestFile{}, errors.New("not a mapping")
	}
	f := guestFile{mode: 0o644}
	if f.path, _ = m["path"].(string); f.path == "" {
		return f, errors.New("path is missing")
	}
	content, _ := m["content"].(string)
	encoding, _ := m["encoding"].(string)
	var err error
	if f.data, err = decodeContent(content, encoding); err != nil {
		return f, fmt.Errorf("%s: %w", f.path, err)
	}
	f.shouldAppend, _ = m["append"].(bool)
	switch p := m["permissions"].(type) {
	case string:
		mode, err := strconv.ParseUint(strings.TrimPrefix(p, "0o"), 8, 32)
		if err != nil {
			return f, fmt.Errorf("%s: permissions %q: %w", f.path, p, err)
		}
		f.mode = uint32(mode)
	case float64: // YAML has already converted an unquoted octal number
		f.mode = uint32(p)
	}
	return f, nil
}

// decodeContent decodes the encodings of cloud-init's module cc_write_files.
func decodeContent(content, encoding string) ([]byte, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "text/plain":
		return []byte(content), nil
	case "b64", "base64":
		return decodeBase64(content)
	case "gz", "gzip":
		return gunzip([]byte(content))
	case "gz+b64", "gz+base64", "gzip+b64", "gzip+base64":
		raw, err := decodeBase64(content)
		if err != nil {
			return nil, err
		}
		return gunzip(raw)
	default:
		return nil, fmt.Errorf("unknown encoding %q", encoding)
	}
}

func decodeBase64(text string) ([]byte, error) {
	out, err := base64.StdEncoding.DecodeString(strings.Join(strings.Fields(text), ""))
	if err != nil {
		return nil, fmt.Errorf("decode base64: %w", err)
	}
	return out, nil
}

func gunzip(data []byte) ([]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(zr, maxUserData))
	if err != nil {
		return nil, fmt.Errorf("decompress: %w", err)
	}
	return out, nil
}
