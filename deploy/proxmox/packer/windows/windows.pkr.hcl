# Copyright The HyperFleet Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Creates a template for HyperFleet's machines from an installation ISO of Windows Server 2022, Windows Server 2025 or
# Windows 11, with Packer. docs/guides/windows.md describes how to use it.

packer {
  required_plugins {
    proxmox = {
      source  = "github.com/hashicorp/proxmox"
      version = ">= 1.2.3"
    }
  }
}

variable "node" {
  type        = string
  description = "The node on which the template is created."
}

variable "windows_iso" {
  type        = string
  description = "The installation ISO, such as local:iso/SERVER_EVAL_x64FRE_en-us.iso."
}

variable "virtio_iso" {
  type        = string
  description = "The ISO with the virtio drivers, such as local:iso/virtio-win.iso."
}

variable "image" {
  type        = string
  default     = "Windows Server 2022 SERVERSTANDARD"
  description = "The name of the edition in the installation ISO. With SERVERSTANDARDCORE, it has no desktop."
}

variable "drivers" {
  type        = string
  default     = "2k22"
  description = "The folder of the virtio drivers: 2k22, 2k25 or w11."
}

variable "setup" {
  type        = string
  default     = "hyperfleet-setup"
  description = "The folder with bootstrap-service.exe, and optionally with CloudbaseInitSetup.msi and actions-runner.zip."
}

variable "storage" {
  type    = string
  default = "local-lvm"
}

variable "iso_storage" {
  type        = string
  default     = "local"
  description = "The storage for the ISO with the answer file, which Packer deletes at the end."
}

variable "disk_size" {
  type    = string
  default = "64G"
}

variable "template_id" {
  type    = number
  default = 9100
}

variable "template_name" {
  type    = string
  default = "windows-runner"
}

variable "tags" {
  type        = string
  default     = ""
  description = "Tags of the template, separated by semicolons. A HypervisorMachineTemplate can find a template by its tags."
}

variable "bridge" {
  type    = string
  default = "vmbr0"
}

# The account is disabled in the machines.
local "password" {
  expression = "Hf1-${uuidv4()}"
  sensitive  = true
}

# The plugin reads PROXMOX_URL, PROXMOX_USERNAME and PROXMOX_TOKEN.
source "proxmox-iso" "windows" {
  node          = var.node
  vm_id         = var.template_id
  template_name = var.template_name
  tags          = var.tags
  task_timeout  = "10m"

  # A template has no TPM, because all clones would share its keys. Proxmox VE's win11 stands for Windows Server 2022
  # and 2025 too.
  os              = "win11"
  machine         = "q35"
  bios            = "ovmf"
  cpu_type        = "host"
  cores           = 4
  memory          = 8192
  scsi_controller = "virtio-scsi-single"

  efi_config {
    efi_storage_pool  = var.storage
    efi_type          = "4m"
    pre_enrolled_keys = true
  }

  disks {
    type         = "scsi"
    storage_pool = var.storage
    disk_size    = var.disk_size
    discard      = true
  }

  network_adapters {
    model  = "virtio"
    bridge = var.bridge
  }

  # The operator needs the slot ide2 for cloud-init data.
  boot_iso {
    type     = "sata"
    iso_file = var.windows_iso
    unmount  = true
  }

  additional_iso_files {
    type     = "sata"
    iso_file = var.virtio_iso
    unmount  = true
  }

  additional_iso_files {
    type             = "sata"
    iso_storage_pool = var.iso_storage
    unmount          = true
    cd_label         = "HYPERFLEET"
    cd_files = [
      "${path.root}/first-logon.ps1",
      "${path.root}/../../customize.ps1",
      "${path.root}/../../sysprep.xml",
      "${path.root}/../../cloudbase-init.conf",
      "${path.root}/../../cloudbase-init-unattend.conf",
      "${var.setup}/*",
    ]
    cd_content = {
      "autounattend.xml" = templatefile("autounattend.pkrtpl.hcl", {
        drivers  = var.drivers
        image    = var.image
        password = local.password
      })
    }
  }

  # The ISO asks for a key before it boots.
  boot_wait    = "2s"
  boot_command = ["<spacebar><wait1s><spacebar><wait1s><spacebar><wait1s><spacebar><wait1s><spacebar>"]

  communicator   = "winrm"
  winrm_username = "Administrator"
  winrm_password = local.password
  winrm_use_ssl  = true
  winrm_insecure = true
  winrm_use_ntlm = true
  winrm_timeout  = "2h"
}

build {
  sources = ["source.proxmox-iso.windows"]

  provisioner "powershell" {
    inline = [
      "$drive = (Get-Volume -FileSystemLabel HYPERFLEET).DriveLetter",
      "& \"$${drive}:\\customize.ps1\" -Sysprep",
    ]
  }
}
